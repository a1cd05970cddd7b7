"""A process that aborts in one thread has seconds for another one to say why."""

import signal
import subprocess
import sys
import time

from ctr_trainer.ranks import stop_signals

ABORTS = """
import ctypes, os, sys, threading, time
from ctr_trainer.ranks import stop_signals
stop_signals.delay_abort()
threading.Thread(target=ctypes.CDLL(None).abort, daemon=True).start()
time.sleep(1)
print("the last words", flush=True)
if "ends" in sys.argv:
    os._exit(75)
time.sleep(60)
"""


def test_another_thread_speaks_and_ends_the_process(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", ABORTS, "ends"], capture_output=True, text=True, timeout=30, cwd=tmp_path
    )
    assert (done.stdout, done.returncode) == ("the last words\n", 75), done.stderr


def test_the_abort_comes_all_the_same(tmp_path):
    before = time.monotonic()
    done = subprocess.run([sys.executable, "-c", ABORTS], capture_output=True, text=True, timeout=30, cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("the last words\n", -signal.SIGABRT), done.stderr
    assert time.monotonic() - before > stop_signals.ABORT_SECONDS - 0.5
