"""What a killed launcher leaves behind: a `horovodrun` may hang, and its workers may wait at their gate."""

import contextlib
import secrets
import signal
import subprocess
import sys

import psutil
import pytest

from ctr_trainer.ranks.notices import ATTEMPT
from tests.launch import processes
from tests.parallel import launch

pytestmark = pytest.mark.integration
_WORKER = "import os; from ctr_trainer.launch.worker import *; print('waits', flush=True); wait_for(os.environ[GATE])"
_LAUNCHER = f"""
import os, sys, time
from ctr_trainer.launch.attempt import Attempt
from ctr_trainer.launch.hosts import Host
from ctr_trainer.settings.command_flags import LaunchFlags
name, errors = sys.argv[1:]
command = [sys.executable, "-c", {_WORKER!r}]
attempt = Attempt(name, (Host("localhost", 2),), command, LaunchFlags(np=2), os.environ, errors, waits=True)
time.sleep(600)
"""


@pytest.mark.parametrize("is_stopped", [False, True])
def test_nothing_is_left_of_a_killed_launcher_even_if_horovodrun_hangs(tmp_path, is_stopped):
    name = f"{secrets.token_hex(8)}.1"
    command = [sys.executable, "-c", _LAUNCHER, name, tmp_path]
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=launch.environment()) as launcher:
            assert {launcher.stdout.readline()[:3] for _ in range(2)} == {b"[0]", b"[1]"}
            (horovodrun,) = psutil.Process(launcher.pid).children()
            if is_stopped:
                horovodrun.send_signal(signal.SIGSTOP)
            launcher.kill()
        launch.wait_until(lambda: not processes.with_variable(ATTEMPT, name), "the end of all processes", 60)
    finally:
        for process in processes.with_variable(ATTEMPT, name):
            with contextlib.suppress(psutil.Error):
                process.kill()
