"""The commands of docs/hosts.md on two hosts: a job that loses a worker, goes on, and is evaluated."""

import collections
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal

import psutil
import pytest

from ctr_trainer.checkpoint.checkpoint import latest_checkpoint
from ctr_trainer.data.reader import BatchReader
from tests.hosts import page
from tests.hosts.rows import names
from tests.parallel import launch

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates need openssl: apt-get install openssl"),
]
SITE = pathlib.Path(__file__).parent / "site"
ROWS = 60_000
SMALLER = {
    "--rows=2000000": f"--rows={ROWS}",
    "--save_checkpoints_steps=100": "--save_checkpoints_steps=20\n--batch_size=128\n--scale_lr=none\n--recipe=none",
}


@pytest.fixture(scope="module")
def told(hosts):
    """f(command of the page) -> the command for small data in a directory of the test."""

    def told(command):
        for text, smaller in {"/shared": str(hosts.shared), **SMALLER}.items():
            command = command.replace(text, smaller)
        return command

    return told


@pytest.fixture(scope="module")
def job(hosts, told):
    """The page's command of the job; its data, its files and its shards are there."""
    job, *steps, _ = map(told, page.commands("host-1"))
    for step in steps:
        status, output = hosts.run(step)
        assert status == 0, output
    (serve,) = map(told, page.commands("each host"))
    shards = [hosts.start(f"exec {serve}", host) for host in (0, 1)]
    for shard in shards:
        assert any("answers on" in line for line in shard.stdout)
    yield job
    for shard in shards:
        shard.send_signal(signal.SIGTERM)
        shard.communicate(timeout=60)


def _workers(hosts, host):
    """Returns the processes of the workers on a host, by rank."""
    found = {}
    for pid in hosts.processes(host):
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if "ctr_trainer" in process.cmdline() and "train" in process.cmdline():
                found[int(process.environ()["HOROVOD_RANK"])] = process
    return found


def _shared_memory(process="[0-9]*"):
    """Returns the names of the shared memory that a process, or any process, has open."""
    found = set()
    for link in pathlib.Path("/proc").glob(f"{process}/fd/*"):
        with contextlib.suppress(OSError):
            found |= {name for name in [os.readlink(link)] if name.startswith("/memfd:ctr_trainer")}
    return found


def _seen(directory, steps):
    """Returns the number of times that each row was read in the first batches of each rank, by the row's name."""
    lines = [(directory / str(rank)).read_text().splitlines()[:steps] for rank in range(4)]
    return collections.Counter(name for of_rank in lines for line in of_rank for name in line.split())


def _syncers(hosts):
    """Returns the names of the workers that sent rows to the shard on the first host."""
    ask = "from urllib.request import urlopen; print(urlopen('http://host-1:9100/metrics').read().decode())"
    status, output = hosts.run(f'python -c "{ask}"', 1)
    assert status == 0, output
    return set(re.findall(r'ctr_service_sync_age_seconds{worker="(.+?)"}', output))


def test_a_job_on_two_hosts_loses_a_worker_goes_on_and_is_evaluated(hosts, told, job):
    model = hosts.shared / "model"
    seen = [hosts.shared / "killed", hosts.shared / "again"]
    variables = [{"ROWS_SEEN": str(path), "PYTHONPATH": str(SITE)} for path in seen]
    for path in seen:
        path.mkdir()

    process = hosts.start(job, **variables[0], BATCH_SECONDS="0.05")
    launch.wait_until(lambda: latest_checkpoint(model) or process.poll() is not None, "a checkpoint", 120)
    assert process.poll() is None, process.stdout.read()
    workers = _workers(hosts, 0) | _workers(hosts, 1)
    memory = [_shared_memory(workers[rank].pid) for rank in range(4)]
    assert memory[0] == memory[1] != memory[2] == memory[3]
    assert not memory[0] & memory[2]
    workers[3].send_signal(signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    _, line = launch.last_line(output)
    saved = latest_checkpoint(model)
    assert re.match("error: .*rank 3 on host-2 has ended without an error message: it was killed", line), output
    assert line.endswith(f"of step {saved.step}: the same command resumes from it")
    launch.wait_until(lambda: not _workers(hosts, 0) and not _workers(hosts, 1), "the workers' ends", 30)
    # A process that ends loses its command line before its files.
    launch.wait_until(lambda: not _shared_memory() & (memory[0] | memory[2]), "the end of the shared memory", 30)

    status, output = hosts.run(job, **variables[1])
    assert status == 0, output
    steps = latest_checkpoint(model).step
    assert steps == -(-ROWS // (4 * 128))
    (rows,) = BatchReader(told("/shared/data/train"), ROWS, shuffle=False, epochs=1)
    assert _seen(seen[0], saved.step) + _seen(seen[1], steps - saved.step) == collections.Counter(names(rows))
    assert _syncers(hosts) == {"rank0", "rank2"}

    *_, evaluate = map(told, page.commands("host-1"))
    status, output = hosts.run(evaluate)
    assert status == 0, output
    assert 0.5 < json.loads(output.splitlines()[-1])["auc"] < 1
