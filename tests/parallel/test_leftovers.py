"""A job whose horovodrun is killed leaves nothing behind: no process, temporary file, shared memory or draft."""

import contextlib
import os
import re
import secrets

import psutil
import pytest

from tests import small
from tests.launch import processes
from tests.parallel import launch

pytestmark = [pytest.mark.integration, pytest.mark.slow]
MARK = "CTR_TRAINER_TEST_MARK"


def _marked(mark):
    """Returns the running processes with this mark in their environment."""
    return processes.with_variable(MARK, mark)


def _is_draft(path):
    """Whether a file is unfinished, except in an unfinished checkpoint, which the next start removes."""
    is_unfinished = re.match("(draft-)?step-", path.parent.name) and not (path.parent / "manifest.json").exists()
    return path.name.endswith(".tmp") and not is_unfinished


def test_nothing_is_left_of_a_job_whose_launcher_is_killed(tmp_path):
    data, model_dir, temporary = small.make(tmp_path, rows=20_000), tmp_path / "model", tmp_path / "tmp"
    temporary.mkdir()
    flags = [f"--train_data={data}", f"--model_dir={model_dir}", "--model=fm", "--batch_size=64", "--recipe=none"]
    flags += ["--epochs=0", "--max_steps=1000000", "--save_checkpoints_steps=50", "--sync_steps=5", "--log_steps=10"]
    line = launch.command(2, "-m", "ctr_trainer", "train", *flags, "--stall_timeout=30")
    mark = secrets.token_hex(8)
    variables = {**launch.environment(), MARK: mark, "TMPDIR": str(temporary)}
    with open(tmp_path / "log", "wb") as log:
        launcher = psutil.Popen(line, env=variables, stdout=log, stderr=log, start_new_session=True)

    def is_saved():
        return launcher.poll() is not None or any(model_dir.glob("checkpoints/*/manifest.json"))

    try:
        launch.wait_until(is_saved, "the first checkpoint", launch.TIMEOUT_SECONDS)
        assert launcher.poll() is None, (tmp_path / "log").read_text()
        shared, commands = set(), []
        for process in _marked(mark):
            with contextlib.suppress(psutil.Error, OSError):
                commands.append(" ".join(process.cmdline()))
                shared |= {each.path for each in process.memory_maps() if each.path.startswith("/dev/shm/")}
        for command, count in (("-m ctr_trainer train", 2), ("-m ctr_trainer serve", 1)):
            assert sum(command in each and "horovod" not in each for each in commands) >= count, commands
        launcher.kill()
        launcher.wait(launch.TIMEOUT_SECONDS)
        launch.wait_until(lambda: not _marked(mark), "the end of all processes", 90)
        launch.wait_until(lambda: not any(map(os.path.exists, shared)), "the removal of the semaphores", 30)
        assert not list(temporary.iterdir()) and not [path for path in model_dir.rglob("*") if _is_draft(path)]
    finally:
        for process in _marked(mark):
            with contextlib.suppress(psutil.Error):
                process.kill()
        launcher.wait(launch.TIMEOUT_SECONDS)
