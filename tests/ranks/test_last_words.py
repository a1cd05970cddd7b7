"""Ranks that end, as real processes: what they say, and that an abort in one thread leaves another time to say it."""

import os
import signal
import subprocess
import sys
import time

import pytest
from horovod.runner.http.http_server import RendezvousServer

from ctr_trainer.ranks import stop_signals
from ctr_trainer.ranks.last_words import TRACEBACKS

_RANK = """
import signal, sys, threading, time
from ctr_trainer.system.files import durable_file
from ctr_trainer.ranks import last_words
from ctr_trainer.system.messages.errors import StoppedInOrder, UserError

signal.signal(signal.SIGINT, signal.default_int_handler)  # Ignored where the tests run in a shell's background.

def sleep():
    print("ready", flush=True)
    time.sleep(600)

def fail(error):
    print("ready", flush=True)
    sys.stdin.readline()
    with words.claimed_on_error():
        raise error

def bug():
    fail(KeyError("a name"))

def graph_error():
    fail(Exception("Graph execution error:\\n\\nDetected at node 'save/SaveV2' defined at:\\n  File x\\n"
        "Node: 'save/SaveV2'\\n/full/disk; No space left on device\\n\\t [[{{node save/SaveV2}}]]"))

def other_rank():
    fail(RuntimeError("rank 1 has ended, and rank 0 waits for its part of a sum"))

class Training:
    # One that does not stop; more than one `ask` is as one.
    first = threading.Lock()

    def ask(self, number):
        if self.first.acquire(blocking=False):
            print("asked", flush=True)

    def explain(self):
        return " (rank 1 on host-b is missing)"

def train():
    words.signals.hand_to(Training(), float(sys.argv[3]))
    print("ready", flush=True)
    while True:
        time.sleep(0.1)  # The main thread handles signals too.

def write():
    with durable_file.replacing(sys.argv[2] + "/output") as draft, open(draft, "w") as file:
        sleep()

def full_disk():
    fail(UserError("the disk is full"))

stopped_by = StoppedInOrder("stopped by SIGTERM to rank 1 after step 7", signal.SIGTERM)

def stopped():
    fail(stopped_by)

def stopped_late():
    # The system holds this rank up, between its look for a claim and its own claim.
    put, last_words._SETTLE_SECONDS = words._notices.put, 3.0
    words._notices.put = lambda key, text: (time.sleep(0.5), put(key, text))
    fail(stopped_by)

def stopped_alone():
    last_words._PATIENCE_SECONDS = 0.5
    fail(stopped_by)

def closing():
    words.stops_in_order(stopped_by)
    print("ready", flush=True)
    sys.stdin.readline()
    print("closed", flush=True)
    raise stopped_by

words = last_words.of_this_process()
words.model_dir = sys.argv[2]
words.resume_text = lambda: "The last checkpoint is of step 7: the same command resumes from it"
sys.exit(words.run(globals()[sys.argv[1]]))
"""


class _Rank:
    """One of them; `does` names the function of `_RANK` that it runs."""

    def __init__(self, does, model_dir, rank=0, size=1, port=None, grace_secs=30, **environment):
        env = {**os.environ, **environment, "HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(size)}
        if port:
            where = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}
            env |= {"HOROVOD_LOCAL_RANK": str(rank), "HOROVOD_LOCAL_SIZE": str(size), **where}
        command = [sys.executable, "-c", _RANK, does, str(model_dir), str(grace_secs)]
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.process = subprocess.Popen(command, env=env, text=True, **pipes)
        assert self.process.stdout.readline() == "ready\n"

    def end(self, how=None):
        """Ends the process; returns (status, lines of its standard error)."""
        if how is not None:
            self.process.send_signal(how)
        _, said = self.process.communicate("go\n", timeout=60)
        return self.process.returncode, said.splitlines()


@pytest.fixture
def port():
    server = RendezvousServer()
    port = server.start()
    server.init([])
    yield port
    server.stop()


GOING_ON = "The last checkpoint is of step 7: the same command resumes from it"


@pytest.mark.parametrize(
    ("number", "said"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "stopped by SIGTERM")], ids=["INT", "TERM"]
)
def test_a_stopped_lone_worker_says_where_it_resumes_and_removes_drafts(tmp_path, number, said):
    assert _Rank("write", tmp_path).end(number) == (128 + number, [f"error: {said}. {GOING_ON}"])
    assert list(tmp_path.iterdir()) == []


def test_a_first_signal_stops_a_training_and_a_second_one_ends_it(tmp_path):
    rank = _Rank("train", tmp_path)
    for _ in range(2):  # As where a scheduler and horovodrun both send it.
        rank.process.send_signal(signal.SIGTERM)
    assert rank.process.stdout.readline() == "asked\n"
    time.sleep(1.1)
    assert rank.process.poll() is None
    assert rank.end(signal.SIGTERM) == (143, [f"error: stopped by SIGTERM. {GOING_ON}"])


def test_a_training_that_does_not_stop_in_time_names_the_rank_it_waits_for(tmp_path):
    status, (line,) = _Rank("train", tmp_path, grace_secs=0.5).end(signal.SIGINT)
    assert status == 130
    late = "the training did not end within grace_secs=0.5 (rank 1 on host-b is missing)"
    assert line == f"error: stopped by Ctrl-C; {late}. {GOING_ON}"
    assert _Rank("train", tmp_path, grace_secs=0).end(signal.SIGTERM)[0] == 143


def test_an_unexpected_errors_traceback_is_kept_in_a_file(tmp_path):
    status, (line,) = _Rank("bug", tmp_path).end()
    kept = tmp_path / "error-rank0.txt"
    assert status == 70
    assert line == f"error: KeyError: 'a name'; its traceback is in {kept}. {GOING_ON}"
    assert "in fail" in kept.read_text()
    status, lines = _Rank("bug", tmp_path / "nowhere").end()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == f"error: KeyError: 'a name'; its traceback is above. {GOING_ON}"
    _, lines = _Rank("full_disk", tmp_path, **{TRACEBACKS: "1"}).end()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "error: the disk is full"
    _, (line,) = _Rank("graph_error", tmp_path).end()
    assert line.startswith("error: Exception: /full/disk; No space left on device; its traceback is in")


def test_of_a_killed_rank_one_of_the_others_speaks(tmp_path, port):
    ranks = [_Rank("sleep", tmp_path, rank, 3, port) for rank in range(3)]
    assert ranks[1].end(signal.SIGKILL) == (-9, [])
    for rank in (0, 2):
        ranks[rank].process.terminate()  # As horovodrun does.
    said = [ranks[rank].end() for rank in (0, 2)]
    assert [status for status, _ in said] == [143, 143]
    (line,) = [line for _, lines in said for line in lines]
    assert line.startswith("error: rank 1 on ")
    assert line.endswith(
        "has ended without an error message: it was killed, as the system does when memory runs out, or it crashed. "
        f"{GOING_ON}"
    )


def test_a_rank_left_alone_keeps_silent_where_the_other_one_speaks(tmp_path, port):
    other, failing = (_Rank(does, tmp_path, rank, 2, port) for rank, does in enumerate(("other_rank", "full_disk")))
    assert failing.end() == (1, ["error: the disk is full"])
    _go(other)
    status, said = other.end(signal.SIGTERM)
    assert status in (75, 143) and said == []  # It ended by itself, as a rank that lost another, or was stopped.
    assert list(tmp_path.iterdir()) == []


def test_ranks_that_are_stopped_together_say_so_once(tmp_path, port):
    ranks = [_Rank("sleep", tmp_path, rank, 3, port) for rank in range(3)]
    for rank in ranks:
        rank.process.terminate()
    lines = [line for rank in ranks for line in rank.end()[1]]
    assert lines == [f"error: stopped by SIGTERM: Ctrl-C at horovodrun, a scheduler, or by hand. {GOING_ON}"]


STOPPED = "stopped by SIGTERM to rank 1 after step 7"


def _go(rank):
    rank.process.stdin.write("go\n")
    rank.process.stdin.flush()


def test_of_ranks_that_have_stopped_in_order_rank_0_says_so_however_late_it_is(tmp_path, port):
    ranks = [_Rank(does, tmp_path, rank, 2, port) for rank, does in enumerate(("stopped_late", "stopped"))]
    _go(ranks[0])
    said = [ranks[1].end(), ranks[0].end(signal.SIGTERM)]  # As horovodrun does, once a rank has ended.
    assert said == [(143, []), (143, [STOPPED])]


def test_a_stopped_rank_ends_after_rank_0_has_closed_its_files(tmp_path, port):
    ranks = [_Rank(does, tmp_path, rank, 2, port) for rank, does in enumerate(("closing", "stopped"))]
    _go(ranks[1])
    time.sleep(1.0)
    assert ranks[1].process.poll() is None
    assert [rank.end() for rank in ranks] == [(143, [STOPPED]), (143, [])]


def test_a_stopped_rank_waits_for_rank_0_no_longer_than_its_patience(tmp_path, port):
    ranks = [_Rank(does, tmp_path, rank, 2, port) for rank, does in enumerate(("closing", "stopped_alone"))]
    assert ranks[1].end() == (143, [STOPPED])
    ranks[0].process.terminate()  # As horovodrun does.
    assert ranks[0].end() == (143, [])


def test_a_rank_told_to_end_after_the_save_says_so_and_closes_its_files(tmp_path, port):
    ranks = [_Rank(does, tmp_path, rank, 2, port) for rank, does in enumerate(("closing", "sleep"))]
    assert ranks[1].end(signal.SIGKILL) == (-9, [])
    ranks[0].process.terminate()
    assert ranks[0].process.stderr.readline() == f"{STOPPED}\n"
    _go(ranks[0])
    assert ranks[0].process.stdout.readline() == "closed\n"
    assert ranks[0].end() == (143, [])


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


@pytest.mark.parametrize(("arguments", "status"), [(["ends"], 75), ([], -signal.SIGABRT)])
def test_one_thread_speaks_while_another_aborts(arguments, status):
    before = time.monotonic()
    done = subprocess.run([sys.executable, "-c", ABORTS, *arguments], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.returncode) == ("the last words\n", status), done.stderr
    assert arguments or time.monotonic() - before > stop_signals.ABORT_SECONDS - 0.5
