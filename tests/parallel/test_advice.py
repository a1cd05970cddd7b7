"""The advice at the end of jobs that are slow for a known reason."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from ctr_trainer.embedding.service.local_service import LocalService
from tests import small
from tests.parallel import launch

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return small.make(tmp_path_factory.mktemp("advice"), rows=2560)


def _advice(situations, data, directory, *more, workers=2):
    """Returns the advice that a job gets in each of these situations, one after another."""
    out = directory / "advice.json"
    arguments = [f"--situations={situations}", f"--data={data}", f"--model_dir={directory / 'model'}", f"--out={out}"]
    # A warm program has a session of its own, for which Linux keeps a share of the core, whatever others want.
    launch.run(workers, launch.WORKERS / "advice.py", *arguments, *more, is_warm=workers > 0)
    return json.loads(out.read_text())


def test_what_slows_two_workers_down_is_named_instead_of_what_they_wait_for(data, tmp_path):
    advice = _advice("batch,slow,fp16", data, tmp_path)
    assert advice["batch"]["flag"] == "--batch_size=256" and "a step of 8 examples" in advice["batch"]["why"]
    assert advice["slow"]["flag"] == "a faster rank 1"
    assert advice["slow"]["share"] > 0.25 and "mostly for its metrics and logs" in advice["slow"]["why"]
    assert advice["fp16"]["flag"] == "--nofp16_allreduce" and "shared memory" in advice["fp16"]["why"]


def test_a_core_at_several_times_its_load_is_named(data, tmp_path):
    core = max(os.sched_getaffinity(0))
    spin = [sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"]
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            process = stack.enter_context(subprocess.Popen(spin))
            stack.callback(process.kill)
        advice = _advice("load", data, tmp_path, workers=0)["load"]
    assert advice["flag"] == "free cores" and advice["share"] > 0.7


def test_a_service_that_rarely_gets_a_core_is_named_and_not_the_network(data, tmp_path):
    """It is stopped for most of the time, as a container without processor time left is."""
    ended = threading.Event()
    with LocalService(tmp_path, tmp_path / "service.log", 60.0) as service:
        token = tmp_path / "token"
        token.write_text(service.token)

        def throttle():
            while not ended.wait(0.02):
                os.kill(service.pid, signal.SIGSTOP)
                ended.wait(0.4)
                os.kill(service.pid, signal.SIGCONT)

        thread = threading.Thread(target=throttle)
        thread.start()
        try:
            more = (f"--service={service.address}", f"--token={token}")
            advice = _advice("service", data, tmp_path, *more)["service"]
        finally:
            ended.set()
            thread.join()
    assert advice["flag"] == "cores of its own for the service"
    assert "training waits for syncs of the embedding rows: a request takes" in advice["why"]
