import contextlib
import sys

import psutil
import pytest

from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import child
from tests.parallel import launch


def test_lines_are_shown_as_they_come_and_stderr_is_kept_apart_unless_asked_for(capfd):
    shown = []
    lines = child.run_command([sys.executable, "-c", "print(1); print(2)"], "counting", 60, show=shown.append)
    assert lines == shown == ["1", "2"]
    code = "import sys; print('out'); sys.stdout.flush(); print('err', file=sys.stderr)"
    assert child.run_command([sys.executable, "-c", code], "talking", 60) == ["out"]
    assert capfd.readouterr().err == "err\n"
    assert child.run_command([sys.executable, "-c", code], "talking", 60, merge_stderr=True) == ["out", "err"]


def test_a_failure_names_what_failed_its_status_and_its_last_lines():
    with pytest.raises(UserError, match=r"counting failed with status 3: .*\n  two$"):
        child.run_command([sys.executable, "-c", "print('two'); raise SystemExit(3)"], "counting", 60)
    with pytest.raises(UserError, match="counting: cannot start /no/such/program"):
        child.run_command(["/no/such/program"], "counting", 60)


def test_what_takes_too_long_is_stopped_with_all_that_it_started():
    # The shell waits for its child, and both hold the pipe's other end.
    script = 'sleep 1000 & echo "$!"; wait'
    with pytest.raises(UserError, match=r"waiting was stopped: it took more than 1 s: .*\n  \d+$") as caught:
        child.run_command(["sh", "-c", script], "waiting", 1)
    pid = int(str(caught.value).rsplit(maxsplit=1)[1])
    with contextlib.suppress(psutil.NoSuchProcess):
        sleeper = psutil.Process(pid)
        launch.wait_until(lambda: sleeper.status() == psutil.STATUS_ZOMBIE, "the end of what was started", 60)
