import subprocess
import sys

import pytest

from ctr_trainer.ranks import notices
from ctr_trainer.ranks.notices import Placement, RollCall


class Board(dict):
    """`Notices` of one process."""

    put = dict.__setitem__


@pytest.fixture
def call(monkeypatch):
    """call(rank) -> its RollCall; of ranks 0 to 3, two on each of two hosts, only rank 3's process has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    board, found = Board(), {}
    monkeypatch.setattr(notices, "_ANSWER_SECONDS", 0.0)

    def call(rank):
        monkeypatch.setattr("socket.gethostname", lambda: f"host-{1 + rank // 2}")
        return found.setdefault(rank, RollCall(board, Placement(rank, 4, (range(0, 2), range(2, 4))[rank // 2])))

    for rank in range(4):
        call(rank)
    board.put("process.3", f"{ended.pid} host-2")
    return call


def test_a_killed_rank_is_known_on_another_host_once_one_beside_it_has_named_it(call):
    call(0).end()
    assert call(0).lost() == ""
    call(2).end()
    assert call(0).lost().startswith("rank 3 on host-2 has ended without a word: it was killed")


def test_a_rank_that_has_told_its_end_is_not_lost(call):
    call(3).end()
    for rank in (0, 1, 2):
        call(rank).end()
    assert call(0).lost() == ""
