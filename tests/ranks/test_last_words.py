"""Ranks that end: real processes, which meet at the server that horovodrun runs for them."""

import os
import signal
import subprocess
import sys

import pytest
from horovod.runner.http.http_server import RendezvousServer

from ctr_trainer.ranks.last_words import TRACEBACKS

_RANK = """
import signal, sys, threading, time
from ctr_trainer.ranks import last_words
from ctr_trainer.messages.errors import UserError

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

def full_disk():
    fail(UserError("the disk is full"))

words = last_words.of_this_process()
words.model_dir = sys.argv[2]
words.going_on = lambda: "The last checkpoint is of step 7: the same command goes on from it"
sys.exit(words.run(globals()[sys.argv[1]]))
"""


class _Rank:
    """One of them; `does` names the function of `_RANK` that it runs."""

    def __init__(self, does, model_dir, rank=0, size=1, port=None, **environment):
        env = {**os.environ, **environment, "HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(size)}
        if port:
            where = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}
            env |= {"HOROVOD_LOCAL_RANK": str(rank), "HOROVOD_LOCAL_SIZE": str(size), **where}
        command = [sys.executable, "-c", _RANK, does, str(model_dir)]
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.process = subprocess.Popen(command, env=env, text=True, **pipes)
        assert self.process.stdout.readline() == "ready\n"

    def end(self, how=None):
        """-> (status, lines of its standard error)."""
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


GOING_ON = "The last checkpoint is of step 7: the same command goes on from it"


def test_a_lone_worker_that_is_interrupted_or_stopped_says_where_it_goes_on(tmp_path):
    assert _Rank("sleep", tmp_path).end(signal.SIGINT) == (130, [f"error: interrupted. {GOING_ON}"])
    assert _Rank("sleep", tmp_path).end(signal.SIGTERM) == (143, [f"error: stopped by SIGTERM. {GOING_ON}"])


def test_the_traceback_of_an_unexpected_error_is_kept_in_a_file_and_never_lost(tmp_path):
    status, (line,) = _Rank("bug", tmp_path).end()
    kept = tmp_path / "error-rank0.txt"
    assert status == 1
    assert line == f"error: KeyError: 'a name'; its traceback is in {kept}. {GOING_ON}"
    assert "in fail" in kept.read_text()
    status, lines = _Rank("bug", tmp_path / "nowhere").end()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == f"error: KeyError: 'a name'; its traceback is above. {GOING_ON}"
    _, lines = _Rank("full_disk", tmp_path, **{TRACEBACKS: "1"}).end()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "error: the disk is full"


def test_of_tensorflows_errors_only_the_reason_is_said(tmp_path):
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
        f"has ended without a word: it was killed, as the system does when memory runs out, or it crashed. {GOING_ON}"
    )


def test_a_rank_that_another_one_leaves_alone_keeps_silent_where_that_one_speaks(tmp_path, port):
    other, failing = (_Rank(does, tmp_path, rank, 2, port) for rank, does in enumerate(("other_rank", "full_disk")))
    assert failing.end() == (1, ["error: the disk is full"])
    other.process.stdin.write("go\n")
    other.process.stdin.flush()
    assert other.end(signal.SIGTERM) == (143, [])
    assert list(tmp_path.iterdir()) == []


def test_ranks_that_are_stopped_together_say_so_once(tmp_path, port):
    ranks = [_Rank("sleep", tmp_path, rank, 3, port) for rank in range(3)]
    for rank in ranks:
        rank.process.terminate()
    lines = [line for rank in ranks for line in rank.end()[1]]
    assert lines == [f"error: stopped by SIGTERM: Ctrl-C at horovodrun, a scheduler, or by hand. {GOING_ON}"]
