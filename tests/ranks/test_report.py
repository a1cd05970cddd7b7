"""Ranks that end, as real processes: what they say, and that an abort in one thread leaves another time to say it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from ctr_trainer.ranks.endings.records import ERRORS, EndRecord, RecordKind, first_cause, read_records
from ctr_trainer.ranks.endings.report import TRACEBACKS
from ctr_trainer.ranks.notices import ATTEMPT

_RANK = """
import os, signal, sys, threading, time
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.ranks.endings import report
from ctr_trainer.ranks.endings.report import EndReport
from ctr_trainer.system.messages.errors import StoppedInOrder, UserError

signal.signal(signal.SIGINT, signal.default_int_handler)  # Ignored where the tests run in a shell's background.

def sleep():
    print("ready", flush=True)
    time.sleep(600)

def fail(error):
    print("ready", flush=True)
    sys.stdin.readline()
    with words.recording_errors():
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
            os.write(1, b"asked\\n")  # It may interrupt the `print` below.

def train():
    words.signals.hand_to(Training(), float(sys.argv[3]))
    print("ready", flush=True)
    while True:
        time.sleep(0.1)  # The main thread handles signals too.

def write():
    with LocalPath(sys.argv[2], "output").writing():
        sleep()

def full_disk():
    fail(UserError("the disk is full"))

stopped_by = StoppedInOrder("stopped by SIGTERM to rank 1 after step 7", signal.SIGTERM)

def stopped():
    fail(stopped_by)

def stopped_late():
    time.sleep(1.0)
    fail(stopped_by)

def watched():
    print("ready", flush=True)
    sys.stdin.readline()
    words.say("rank 0 has waited 12 s for step 8")
    sys.exit(75)

def stopped_alone():
    report._PATIENCE_SECONDS = 0.5
    fail(stopped_by)

def closing():
    words.stops_in_order(stopped_by)
    print("ready", flush=True)
    sys.stdin.readline()
    print("closed", flush=True)
    raise stopped_by

words = EndReport(sys.argv[2])
words.explain = lambda: " (rank 1 on host-b is missing)"
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


GOING_ON = "The last checkpoint is of step 7: the same command resumes from it"


@pytest.mark.parametrize(
    ("number", "said"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "stopped by SIGTERM")], ids=["INT", "TERM"]
)
def test_a_lone_worker_that_is_stopped_says_where_it_resumes_and_removes_drafts(tmp_path, number, said):
    assert _Rank("write", tmp_path).end(number) == (128 + number, [f"error: {said}. {GOING_ON}"])
    assert list(tmp_path.iterdir()) == []


def test_the_first_signal_asks_a_training_to_stop_and_a_second_one_ends_it(tmp_path):
    rank = _Rank("train", tmp_path)
    for _ in range(2):  # As where a scheduler and horovodrun both send it.
        rank.process.send_signal(signal.SIGTERM)
    assert rank.process.stdout.readline() == "asked\n"
    time.sleep(1.1)
    assert rank.process.poll() is None
    assert rank.end(signal.SIGTERM) == (143, [f"error: stopped by SIGTERM. {GOING_ON}"])


def test_a_training_that_does_not_stop_in_time_names_who_it_waits_for(tmp_path):
    status, (line,) = _Rank("train", tmp_path, grace_secs=0.5).end(signal.SIGINT)
    assert status == 130
    late = "the training did not end within grace_secs=0.5 (rank 1 on host-b is missing)"
    assert line == f"error: stopped by Ctrl-C; {late}. {GOING_ON}"
    assert _Rank("train", tmp_path, grace_secs=0).end(signal.SIGTERM)[0] == 143


def test_a_traceback_is_kept_in_a_file_and_only_the_reason_is_said(tmp_path):
    status, (line,) = _Rank("bug", tmp_path).end()
    kept = tmp_path / "error-rank0.json"
    assert status == 70
    assert line == f"error: KeyError: 'a name'; its traceback is in {kept}. {GOING_ON}"
    record = json.loads(kept.read_text())
    assert record["message"] == "KeyError: 'a name'" and "in fail" in "".join(record["traceback"])
    assert {"kind", "status", "time", "host", "rank", "pid", "attempt"} < set(record)
    status, lines = _Rank("bug", tmp_path / "nowhere").end()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == f"error: KeyError: 'a name'; its traceback is above. {GOING_ON}"
    _, lines = _Rank("full_disk", tmp_path, **{TRACEBACKS: "1"}).end()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "error: the disk is full"
    _, (line,) = _Rank("graph_error", tmp_path).end()
    assert line.startswith("error: Exception: /full/disk; No space left on device; its traceback is in")


def _go(rank):
    rank.process.stdin.write("go\n")
    rank.process.stdin.flush()


KILLED = "has ended without an error message: it was killed, as the system does when memory runs out, or it crashed"


@pytest.mark.parametrize("killed", [0, 1])
def test_one_rank_reports_a_killed_rank_and_the_launcher_finds_its_record(tmp_path, port, killed):
    variables = {ERRORS: str(tmp_path), ATTEMPT: "job.1"}
    ranks = [_Rank("sleep", tmp_path, rank, 3, port, **variables) for rank in range(3)]
    assert ranks[killed].end(signal.SIGKILL) == (-9, [])
    others = [rank for number, rank in enumerate(ranks) if number != killed]
    for rank in others:
        rank.process.terminate()  # As horovodrun does.
    said = [rank.end() for rank in others]
    assert [status for status, _ in said] == [143, 143]
    (line,) = [line for _, lines in said for line in lines]
    assert line.startswith(f"error: rank {killed} on ") and line.endswith(f"{KILLED}. {GOING_ON}")
    first = first_cause(read_records(str(tmp_path), "job.1"))
    assert (first.rank, first.kind, first.status, first.is_of_killed) == (killed, RecordKind.CAUSE, 75, True)
    assert first.message in line
    assert read_records(str(tmp_path), "job.0") == []


@pytest.mark.parametrize("does", ["other_rank", "watched", "sleep"])
def test_a_rank_is_silent_if_another_one_has_the_cause(tmp_path, port, does):
    other, failing = (_Rank(each, tmp_path, rank, 2, port) for rank, each in enumerate((does, "full_disk")))
    assert failing.end() == (1, ["error: the disk is full"])
    _go(other)
    time.sleep(0.3)
    status, said = other.end(signal.SIGTERM)
    assert status in (75, 143) and said == []  # It ended by itself, or horovodrun ended it.
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_has_lost_a_connection_says_so_if_no_rank_has_a_cause(tmp_path, port):
    ranks = [_Rank("other_rank", tmp_path, rank, 2, port) for rank in range(2)]
    for rank in ranks:
        _go(rank)
    said = [ranks[0].end(), ranks[1].end(signal.SIGTERM)]  # As horovodrun does, once a rank has ended.
    assert said[0] == (75, [f"error: the connection to another rank is lost: {LOST_PART}. {GOING_ON}"])
    assert said[1][1] == []


LOST_PART = "rank 1 has ended, and rank 0 waits for its part of a sum"


def test_ranks_that_are_stopped_together_say_so_once(tmp_path, port):
    ranks = [_Rank("sleep", tmp_path, rank, 3, port) for rank in range(3)]
    for rank in ranks:
        rank.process.terminate()
    lines = [line for rank in ranks for line in rank.end()[1]]
    assert lines == [f"error: stopped by SIGTERM: Ctrl-C at horovodrun, a scheduler, or by hand. {GOING_ON}"]


def test_a_rank_that_was_never_heard_is_named(tmp_path, port):
    rank = _Rank("sleep", tmp_path, 0, 2, port)
    (line,) = rank.end(signal.SIGTERM)[1]
    assert line.startswith("error: nothing was heard of rank 1, whose host may not reach horovodrun at 127.0.0.1:")


STOPPED = "stopped by SIGTERM to rank 1 after step 7"


@pytest.mark.parametrize("first", ["stopped_late", "closing"])
def test_rank_0_reports_a_stop_in_order_and_ends_first_however_late_it_is(tmp_path, port, first):
    ranks = [_Rank(does, tmp_path, rank, 2, port) for rank, does in enumerate((first, "stopped"))]
    _go(ranks[1])
    time.sleep(1.0)
    assert ranks[1].process.poll() is None
    assert [rank.end() for rank in ranks] == [(143, [STOPPED]), (143, [])]


def test_a_rank_that_has_stopped_in_order_waits_for_rank_0_a_limited_time(tmp_path, port):
    ranks = [_Rank(does, tmp_path, rank, 2, port) for rank, does in enumerate(("closing", "stopped_alone"))]
    assert ranks[1].end() == (143, [STOPPED])
    ranks[0].process.terminate()  # As horovodrun does.
    assert ranks[0].end() == (143, [])


def test_a_rank_that_is_told_to_end_after_saving_closes_its_files(tmp_path, port):
    ranks = [_Rank(does, tmp_path, rank, 2, port) for rank, does in enumerate(("closing", "sleep"))]
    assert ranks[1].end(signal.SIGKILL) == (-9, [])
    ranks[0].process.terminate()
    assert ranks[0].process.stderr.readline() == f"{STOPPED}\n"
    _go(ranks[0])
    assert ranks[0].process.stdout.readline() == "closed\n"
    assert ranks[0].end() == (143, [])


@pytest.mark.parametrize("text", [None, "", "x", "[]", "7", '{"message": "x"}', '{"message": 7, "kind": 9}'])
def test_a_text_of_another_program_is_no_record(text):
    assert EndRecord.parse(text) is None


ABORTS = """
import ctypes, os, threading, time
from ctr_trainer.ranks import meetings
meetings.delay_abort()
threading.Thread(target=ctypes.CDLL(None).abort, daemon=True).start()
time.sleep(1)
print("the last words", flush=True)
os._exit(75)
"""


def test_while_one_thread_aborts_another_one_reports_and_ends_the_process():
    done = subprocess.run([sys.executable, "-c", ABORTS], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("the last words\n", 75), done.stderr
