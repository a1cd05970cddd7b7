"""Real jobs under `launch`, whose workers, service or launcher are killed."""

import collections
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

from ctr_trainer.checkpoint.checkpoint import latest_checkpoint, list_checkpoints
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.ranks.notices import Notices
from tests import small
from tests.hosts.rows import names, trained
from tests.launch import processes
from tests.parallel import launch

pytestmark = [pytest.mark.integration, pytest.mark.slow]
SITE = pathlib.Path(__file__).parents[1] / "hosts" / "site"
ROWS = 4003


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return small.make(tmp_path_factory.mktemp("launch"), rows=ROWS)


def _unfinished(model_dir):
    steps = (model_dir / "checkpoints").glob("step-*")
    return [step for step in steps if not (step / "manifest.json").exists()]


class _Launched:
    """A running `launch`; what is left of it is killed at the end of the block."""

    def __init__(self, data, directory, *more, batch_seconds=0.05, options=("-np", "2"), python=sys.executable):
        self.model_dir, self.seen = directory / "model", directory / "seen"
        self.seen.mkdir(exist_ok=True)
        flags = [f"--train_data={data}", f"--model_dir={self.model_dir}"]
        flags += ["--hidden_units=8", "--batch_size=16", "--recipe=none"]
        environment = launch.environment()
        environment["PYTHONPATH"] = f"{SITE}{os.pathsep}{environment['PYTHONPATH']}"
        self.process = subprocess.Popen(
            [python, "-m", "ctr_trainer", "launch", *options, "--", *flags, *more],
            env={**environment, "ROWS_SEEN": str(self.seen), "BATCH_SECONDS": str(batch_seconds)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def saved(self, step):
        """Returns once a checkpoint of `step` or more is written."""

        def reached():
            latest = latest_checkpoint(self.model_dir)
            return self.process.poll() is not None or latest and latest.step >= step

        launch.wait_until(reached, f"the checkpoint of step {step}", 180)
        assert self.process.poll() is None, self.process.stdout.read()
        return latest_checkpoint(self.model_dir).step

    def processes(self):
        """Returns the processes that the launcher has started."""
        return processes.of_job(self.model_dir)

    def all_ended(self, seconds):
        """Returns once the launcher and all its processes have ended; fails with the state of those that remain."""
        deadline = time.monotonic() + seconds
        while left := {*self.processes(), *processes.with_variable("ROWS_SEEN", str(self.seen))}:
            if time.monotonic() > deadline:
                raise AssertionError("\n".join([f"after {seconds} s there are still", *map(processes.state, left)]))
            time.sleep(0.05)

    def semaphores(self):
        """Returns the paths of the semaphores of horovodrun."""
        used = set()
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                used |= {each.path for each in process.memory_maps()}
        return {path for path in used if path.startswith("/dev/shm/")}

    def worker(self, rank, start):
        """Returns the process of a rank in a start; None if it does not exist yet."""
        return processes.workers(self.model_dir).get((rank, start))

    def finish(self):
        """Waits for the end; returns (status, output)."""
        output, _ = self.process.communicate(timeout=launch.TIMEOUT_SECONDS)
        return self.process.returncode, output

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def test_a_job_goes_on_by_itself_after_a_killed_worker_and_a_killed_service(data, tmp_path):
    flags = ["--save_checkpoints_steps=10", "--log_steps=10"]
    with _Launched(data, tmp_path, *flags, batch_seconds=0.2, python=launch.warm_python()) as job:
        launch.wait_until(lambda: job.worker(1, 1), "the workers that are kept ready", 180)
        first, semaphores = job.saved(20), job.semaphores()
        job.worker(1, 0).kill()
        # The next checkpoint may be one that was being written then; the one after it is of the restarted job.
        again = job.saved(latest_checkpoint(job.model_dir).step + 20)
        (service,) = launch.services(job.model_dir)
        service.kill()
        status, output = job.finish()
        assert status == 0, output
        assert not job.processes()
        assert semaphores and not any(map(os.path.exists, semaphores))
    last = latest_checkpoint(job.model_dir).step
    assert last == -(-ROWS // (2 * 16))
    summary = json.loads((job.model_dir / "train_summary.json").read_text())
    worker, service = summary["restarts"]
    # The other worker records the kill, unless horovodrun stops it first; horovodrun's own line names the signal.
    killed = r"rank 1 (on \S+ has ended without an error message: it was killed|ended by SIGKILL)"
    assert re.search(killed, worker["reason"])
    assert "embedding service" in service["reason"]
    assert first <= worker["step"] < again <= service["step"] < last
    for number, restart in enumerate((worker, service), 1):
        lines = [line for line in output.splitlines() if f"restart {number}: " in line]
        assert len(lines) == 1
        lost = f"Lost {restart['steps_lost']} steps, {restart['seconds_lost']:.1f} s of training"
        assert f"{lost}; resuming from the checkpoint of step {restart['step']} with 2 workers" in lines[0]
        assert 0 <= restart["steps_lost"] <= 60  # On a slow disk, a checkpoint of ten steps takes longer than they do.
        assert restart["seconds_to_train_again"] > 0
    (rows,) = BatchReader(data, ROWS, shuffle=False, epochs=1)
    assert trained(job.seen, summary["restarts"], last) == collections.Counter(names(rows))


def test_a_restart_after_resume_from_keeps_what_was_trained_since(data, tmp_path):
    flags = ["--save_checkpoints_steps=5", "--keep_checkpoint_max=0", "--max_steps=40"]
    python = launch.warm_python()
    with _Launched(data, tmp_path, *flags, "--max_steps=20", batch_seconds=0, python=python) as job:
        status, output = job.finish()
        assert status == 0, output
    with _Launched(data, tmp_path, *flags, "--resume_from=5", batch_seconds=0.2, python=python) as job:
        launch.wait_until(lambda: list(job.model_dir.glob("checkpoints/set-aside-*-0000000020")), "the set aside", 180)
        job.saved(15)
        job.worker(1, 0).kill()
        status, output = job.finish()
    assert status == 0, output
    (restart,) = json.loads((job.model_dir / "train_summary.json").read_text())["restarts"]
    assert f"resuming from {job.model_dir}/checkpoints/step-{restart['step']:010d}" in output and restart["step"] >= 15
    aside = sorted(path.name for path in job.model_dir.glob("checkpoints/set-aside-*"))
    assert aside == [f"set-aside-step-{step:010d}" for step in (10, 15, 20)]
    assert latest_checkpoint(job.model_dir).step == 40


def test_slots_that_come_are_taken_in_at_the_next_checkpoint(data, tmp_path):
    listed = tmp_path / "hosts"
    listed.write_text("localhost:1\n")
    options = ["-np", "1", "--max-np", "2", "--host-discovery-script", f"cat {listed}"]
    python = launch.warm_python()
    with _Launched(data, tmp_path, "--save_checkpoints_steps=10", options=options, python=python) as job:
        job.saved(20)
        listed.write_text("localhost:2\n")
        status, output = job.finish()
    assert status == 0, output
    (restart,) = json.loads((job.model_dir / "train_summary.json").read_text())["restarts"]
    assert restart["reason"] == "there are 2 slots now, on localhost:2"
    assert (restart["workers_before"], restart["workers"]) == (1, 2)
    assert restart["steps_lost"] == 0  # They were asked to end, and saved.
    last = latest_checkpoint(job.model_dir).step
    (rows,) = BatchReader(data, ROWS, shuffle=False, epochs=1)
    assert trained(job.seen, [restart], last) == collections.Counter(names(rows))


def test_an_error_that_a_person_can_mend_is_said_last_and_not_tried_again(tmp_path):
    with _Launched(tmp_path / "nowhere", tmp_path, python=launch.warm_python()) as job:
        status, output = job.finish()
    assert status == 1
    last = output.splitlines()[-1]
    assert last.startswith(f"error: data set {tmp_path / 'nowhere'}: no such directory; run `convert` first")
    assert last.endswith(". Not restarted: the same flags and data would end the same way")
    assert "restart 1" not in output


def _forge_notices(environment):
    """Puts notices as another user of this host can: that a rank is lost, or has said the last word."""
    address = ":".join(environment[f"HOROVOD_GLOO_RENDEZVOUS_{what}"] for what in ("ADDR", "PORT"))
    stranger = Notices(address)
    for key in ("end.0", "end.1", "said", "process.0"):
        stranger.put(key, "1 elsewhere")
        assert stranger.get(key) == "1 elsewhere"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_launcher_that_is_stopped_or_killed(data, tmp_path, how):
    # A launcher that is killed starts as users start it; one that is stopped gets the signal by `warm_python`, too.
    python = launch.warm_python() if how == signal.SIGTERM else sys.executable
    with _Launched(data, tmp_path, "--save_checkpoints_steps=5", batch_seconds=0.2, python=python) as job:
        job.saved(5)
        semaphores = job.semaphores()
        assert semaphores
        if how == signal.SIGTERM:
            _forge_notices(job.worker(1, 0).environ())
        if how == signal.SIGKILL:  # In the middle of a checkpoint.
            launch.wait_until(lambda: _unfinished(job.model_dir), "a checkpoint that is being written", 60, every=1e-3)
        job.process.send_signal(how)
        job.all_ended(90)
        status, output = job.finish()
    if how == signal.SIGTERM:
        assert status == 143
        saved = latest_checkpoint(job.model_dir)
        assert output.splitlines()[-1] == (
            f"stopped by SIGTERM after step {saved.step}; the checkpoint {saved.path} is saved: the same command "
            "resumes from there"
        )
    else:
        assert status == -9
        for checkpoint in list_checkpoints(job.model_dir):
            checkpoint.verify()
        assert latest_checkpoint(job.model_dir).step >= 5
    assert not launch.services(job.model_dir)
    launch.wait_until(lambda: not any(map(os.path.exists, semaphores)), "the removal of the semaphores", 30)
