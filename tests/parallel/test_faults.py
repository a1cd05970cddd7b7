"""Jobs that are stopped, or whose service is suspended or out of disk, end as an undisturbed one does."""

import os
import resource
import shutil
import signal
import threading

import numpy as np
import pytest

from ctr_trainer.checkpoint.checkpoint import latest_checkpoint, list_checkpoints
from ctr_trainer.checkpoint.evaluations import EvaluationHistory
from tests import small
from tests.parallel import launch
from tests.parallel.test_job import NEXT

pytestmark = [pytest.mark.integration, pytest.mark.slow]
STEPS = 60


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return small.make(tmp_path_factory.mktemp("faults"), rows=1003)


def _arguments(data, *directories, more=()):
    """Returns the arguments of a job that trains in each directory, one after another."""
    arguments = [launch.WORKERS / "job.py"]
    for directory in directories:
        flags = [f"--data={data}", f"--model_dir={directory / 'model'}", f"--out={directory / 'out'}"]
        arguments += [NEXT, *flags, "--epochs=0", f"--max_steps={STEPS}", *more]
    return arguments


class _Job:
    """A running job; ends with the block."""

    def __init__(self, data, directory, *more):
        self.directory, self.model_dir = directory, directory / "model"
        arguments = _arguments(data, directory, more=("--step_seconds=0.2", *more))
        self._process = launch.start(2, *arguments, start_new_session=True)

    def service_at(self, step):
        """Returns the process of a service after a checkpoint of at least `step` is written."""
        found = []

        def reached():
            assert self._process.poll() is None, self.finish()[1]
            latest = latest_checkpoint(self.model_dir)
            if latest and latest.step >= step:  # The list of all processes takes longer.
                found[:] = launch.services(self.model_dir)
            return found

        launch.wait_until(reached, f"the checkpoint of step {step}", 180)
        return found[0]

    def press_ctrl_c(self):
        """As a terminal does: to the launcher and all in its group."""
        os.killpg(self._process.pid, signal.SIGINT)

    def finish(self):
        """Waits for the end of the job; returns (status, output)."""
        output, _ = self._process.communicate(timeout=launch.TIMEOUT_SECONDS)
        return self._process.returncode, output

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(60)


def _stopped_after(output, how, model_dir):
    """Returns the step after which a job was stopped, according to its last line; checks that the checkpoint exists."""
    latest = latest_checkpoint(model_dir)
    said = f"stopped by {how} after step {latest.step}; the checkpoint {latest.path} is saved: the same command "
    assert launch.last_line(output) == (0, f"{said}resumes from there")
    latest.verify()
    assert output.count("stopped by") == 1
    assert "Traceback" not in output
    if "status code 137" not in output:  # On a busy machine horovodrun kills workers that close their files.
        assert not [name for name in os.listdir(model_dir) if name in (".ranks", ".lock")]
    return latest.step


@pytest.fixture(scope="module")
def full(data, tmp_path_factory):
    """The (status, output, job, steps) of a job whose service is suspended for a while, and then finds the disk full.

    The steps are those of the newest checkpoint where the service was stopped, and where it was let go on.
    """
    directory = tmp_path_factory.mktemp("full")
    with _Job(data, directory, "--service_timeout=60") as job:
        service = job.service_at(10)
        launch.stand_still(service.pid)
        stopped_at = latest_checkpoint(job.model_dir).step
        threading.Event().wait(5)  # The fault itself lasts that long.
        still_at = latest_checkpoint(job.model_dir).step
        service.send_signal(signal.SIGCONT)
        job.service_at(stopped_at + 10)
        # From here on the kernel refuses the service a file of more than 64 bytes, as a full disk would.
        resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (64, 64))
        status, output = job.finish()
    return status, output, job, (stopped_at, still_at, latest_checkpoint(job.model_dir))


@pytest.fixture(scope="module")
def stopped(data, tmp_path_factory):
    """The directory of a training that is stopped twice: by SIGTERM to one worker, and by Ctrl-C."""
    directory = tmp_path_factory.mktemp("stopped")
    with _Job(data, directory) as job:
        job.service_at(10).send_signal(signal.SIGTERM)  # As a machine that shuts down: the service is left to its job.
        os.kill(int((directory / "out" / "pid-1").read_text()), signal.SIGTERM)
        status, output = job.finish()
    assert status != 0
    assert "exit with status code 143" in output, output  # horovodrun may end before it has named both.
    first = _stopped_after(output, "SIGTERM to rank 1", job.model_dir)
    assert 10 <= first < STEPS
    with _Job(data, directory) as job:
        job.service_at(first + 10)
        job.press_ctrl_c()
        status, output = job.finish()
    assert status != 0
    assert first + 10 <= _stopped_after(output, "SIGTERM", job.model_dir) < STEPS
    return directory


@pytest.fixture(scope="module")
def gone_on(data, full, stopped, tmp_path_factory):
    """The directories, by name, of trainings that were resumed to their end; `undisturbed` was not interrupted."""
    found = {"stopped": stopped, **{name: tmp_path_factory.mktemp(name) for name in ("full_again", "undisturbed")}}
    shutil.copytree(full[2].model_dir, found["full_again"] / "model")
    launch.run(2, *_arguments(data, *found.values()))
    return found


def test_a_signal_ends_the_last_evaluation_and_a_restart_makes_it_up(data, tmp_path):
    with _Job(data, tmp_path, "--max_steps=10", "--evaluation_steps=0") as job:
        job.service_at(10)
        os.kill(int((tmp_path / "out" / "pid-1").read_text()), signal.SIGTERM)
        status, output = job.finish()
    assert status != 0
    assert _stopped_after(output, "SIGTERM to rank 1", job.model_dir) == 10
    launch.run(2, *_arguments(data, tmp_path, more=("--max_steps=10", "--evaluation_steps=3")))
    history = EvaluationHistory.load(job.model_dir)
    assert ([each["step"] for each in history.evaluations], history.best["step"]) == ([10], 10)
    assert len(os.listdir(job.model_dir / "export" / "final")) == 1


def test_training_waits_for_a_stalled_service_and_survives_a_full_disk(full):
    status, output, job, (stopped_at, still_at, saved) = full
    assert stopped_at == still_at < saved.step
    assert status != 0
    _, line = launch.last_line(output)
    assert "cannot be written" in line
    assert "free some space there" in line
    assert f"step-{saved.step:010d}" in line
    assert output.count("error: ") == 1
    assert "Traceback" not in output
    assert f"step-{saved.step + 10:010d}" in output
    for checkpoint in list_checkpoints(job.model_dir):
        checkpoint.verify()
    unfinished = job.model_dir / "checkpoints" / f"step-{saved.step + 10:010d}"
    assert not (unfinished / "manifest.json").exists()
    assert not [name for name in os.listdir(unfinished) if name.endswith(".tmp")]


def test_a_training_goes_on_to_the_rows_of_one_that_nothing_happened_to(gone_on):
    rows, undisturbed = (np.load(gone_on[each] / "out" / "rows.npz") for each in ("full_again", "undisturbed"))
    np.testing.assert_array_equal(rows["keys"], undisturbed["keys"])
    # Two workers' pushes come in either order, so sums may differ in their last bit.
    np.testing.assert_allclose(rows["rows"], undisturbed["rows"], atol=1e-5, rtol=0)
    assert latest_checkpoint(gone_on["full_again"] / "model").step == STEPS


def test_a_stopped_worker_or_ctrl_c_loses_no_step(gone_on):
    # Its rows differ in their last digits: the syncs before its checkpoints came after other steps.
    of_both = [latest_checkpoint(gone_on[name] / "model") for name in ("stopped", "undisturbed")]
    (step, examples, position), expected = [(each.step, each.examples, each.position) for each in of_both]
    assert (step, examples, position) == expected
    assert step == STEPS
