"""A job under `launch` on two hosts, of which one is taken away and given back."""

import collections
import contextlib
import json
import os
import pathlib
import signal
import subprocess

import pytest

from ctr_trainer.checkpoint.checkpoint import latest_checkpoint
from ctr_trainer.data.reader import BatchReader
from tests import small
from tests.hosts import machines as simulated
from tests.hosts.rows import names, trained
from tests.parallel import launch

pytestmark = [pytest.mark.integration, pytest.mark.slow]
SITE = pathlib.Path(__file__).parent / "site"
ROWS = 6007


def _link(hosts, state):
    """Sets the network of the second host up or down."""
    command = hosts.machines[1].command(["ip", "link", "set", simulated.INTERFACE, state])
    subprocess.run(command, check=True, timeout=60)


def _kill_workers(hosts):
    for pid in hosts.processes(1):
        with contextlib.suppress(OSError):
            if b"ctr_trainer" in pathlib.Path("/proc", str(pid), "cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)


def test_a_job_goes_on_without_a_host_and_takes_it_in_again(hosts, port):
    data = small.make(hosts.shared / "survive", rows=ROWS)
    model, seen = hosts.shared / "survivor", hosts.shared / "seen"
    seen.mkdir()
    flags = f"--train_data={data} --model_dir={model} --hidden_units=8 --batch_size=16 --save_checkpoints_steps=10"
    flags += f" --recipe=none --embedding_service=host-1:{port} --token_file={hosts.shared / 'token'}"
    options = "-np 2 --min-np 1 -H host-1:1,host-2:1 --network-interface eth0"
    variables = {"ROWS_SEEN": str(seen), "PYTHONPATH": f"{SITE}:{launch.ROOT}", "BATCH_SECONDS": "0.1"}
    job = hosts.start(f"exec python -m ctr_trainer launch {options} -- {flags}", **variables)
    try:
        launch.wait_until(lambda: latest_checkpoint(model) or job.poll() is not None, "a checkpoint", 240)
        assert job.poll() is None, job.stdout.read()
        _link(hosts, "down")
        _kill_workers(hosts)
        launch.wait_until((seen / "1" / "0").exists, "one worker that goes on", 240)
        _link(hosts, "up")
        output, _ = job.communicate(timeout=480)
    finally:
        _link(hosts, "up")
        job.kill()
    assert job.returncode == 0, output
    restarts = json.loads((model / "train_summary.json").read_text())["restarts"]
    assert [(each["workers_before"], each["workers"]) for each in restarts] == [(2, 1), (1, 2)]
    assert restarts[0]["reason"] == "host-2 no longer answers"
    assert restarts[1]["reason"] == "there are 2 slots now, on host-1:1,host-2:1"
    (rows,) = BatchReader(data, ROWS, shuffle=False, epochs=1)
    assert trained(seen, restarts, latest_checkpoint(model).step) == collections.Counter(names(rows))
