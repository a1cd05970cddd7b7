"""A process that another one starts."""

import signal
import subprocess
import sys

from ctr_trainer.system.processes import child
from ctr_trainer.system.processes.child import Child

_SAYS = [sys.executable, "-c", "import sys; print('said'); sys.stdin.read()"]


def _run(log):
    with Child(_SAYS, log) as process:
        pass
    assert process.status == 0


def test_a_log_goes_on_until_it_is_large_and_then_begins_anew(tmp_path, monkeypatch):
    log, before = tmp_path / "service.log", tmp_path / "service.log.1"
    _run(log)
    _run(log)
    assert log.read_text() == "said\nsaid\n" and not before.exists()
    monkeypatch.setattr(child, "_MOST_LOG_BYTES", 4)
    _run(log)
    assert log.read_text() == "said\n" and before.read_text() == "said\nsaid\n"
    _run(log)
    assert log.read_text() == before.read_text() == "said\n"


def test_a_child_knows_what_its_parent_told_it_and_a_child_of_its_own_does_not(tmp_path):
    code = (
        "import os, subprocess, sys; from ctr_trainer.system.processes import child; print(child.told_by_parent()); "
        "print(child.told_by_parent(), child.CHILD in os.environ)"
    )
    log = tmp_path / "log"
    with Child([sys.executable, "-c", code], log, told={"cores": [1, 2]}) as process:
        process._process.wait(60)
    assert log.read_text().splitlines() == ["{'cores': [1, 2]}", "None False"]


def test_a_process_that_ignores_sigterm_ends_with_its_killed_parent():
    ignores = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    parent = (
        "import signal, subprocess, sys; from ctr_trainer.system.processes.child import ended_with_parent; "
        f"subprocess.run([sys.executable, '-c', {ignores!r}], preexec_fn=ended_with_parent(signal.SIGKILL))"
    )
    started = dict(stdout=subprocess.PIPE, env=child.importing_environment())
    with subprocess.Popen([sys.executable, "-c", parent], **started) as process:
        assert process.stdout.readline() == b"ready\n"
        process.kill()
        assert process.stdout.read() == b""  # The end of the output, as both processes have ended.


def test_a_signal_sets_an_event_whose_lock_the_main_thread_holds():
    with child.ending_event(is_child=False) as event, event._cond:
        signal.raise_signal(signal.SIGTERM)
        assert not event.is_set()
    assert event.wait(60)
