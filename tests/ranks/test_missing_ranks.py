"""What ranks say of themselves in their files, and which ranks the others call missing or lost."""

import dataclasses

import pytest

from ctr_trainer.ranks.endings import states
from ctr_trainer.ranks.endings.states import RankState, RankStates, StateFile, missing, read_state
from ctr_trainer.system.measuring.clock import Clock
from tests.parallel import launch


def _state(rank, step, phase, written=0.0, seconds=30.0):
    return RankState(rank, step, phase, seconds, written, "host")


@pytest.fixture
def ranks(monkeypatch):
    """A dict of the states by rank, `now` for the time of this host, and `after_sleep`, called by time.sleep."""

    class Ranks(dict):
        now = 0.0

        def after_sleep(self):
            pass

    found = Ranks()
    monkeypatch.setattr(states, "read_state", lambda directory, rank: found.get(rank))
    monkeypatch.setattr("time.monotonic", lambda: found.now)
    monkeypatch.setattr("time.sleep", lambda seconds: found.after_sleep())
    return found


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([(0, 7, "session", 1), (1, 7, "read", 1), (2, 7, "session", 1)], [1]),
        ([(0, 7, "session", 1), (1, 6, "session", 1), (2, 7, "read", 1)], [1]),  # further behind than 2
        ([(0, 7, "session", 1), (1, 7, "session", 9)], [1]),  # it may wait, but it does not live
        ([(0, 7, "checkpoint", 1), (1, 7, "hooks", 1), (2, 7, "update", 1)], [1, 2]),
        ([(0, 7, "session", 1), (1, 7, "session", 1)], []),
        ([], []),
    ],
)
def test_the_missing_ranks_are_the_silent_ones_or_else_those_furthest_behind(found, expected):
    given = [(_state(rank, step, phase), silent) for rank, step, phase, silent in found]
    assert [state.rank for state, _ in missing(given)] == expected


def test_a_file_shows_the_phase_the_step_and_the_seconds_until_the_rank_leaves(tmp_path, monkeypatch):
    monkeypatch.setenv(states.ATTEMPT, "job.1")
    clock = Clock()
    file = StateFile(tmp_path, 3, clock, period=0.01)
    assert (read_state(tmp_path, 3).phase, read_state(tmp_path, 3).step) == ("start", 0)
    clock.step = 12
    clock.enter("dense_sync")
    launch.wait_until(lambda: read_state(tmp_path, 3).phase == "dense_sync", "the next state", 30)
    state = read_state(tmp_path, 3)
    assert (state.rank, state.step, state.attempt) == (3, 12, "job.1") and 0 <= state.seconds < 30
    launch.wait_until(lambda: read_state(tmp_path, 3).written > state.written, "a later state", 30)
    file.close()
    assert read_state(tmp_path, 3) is None
    assert list(tmp_path.iterdir()) == []


def test_the_sentence_names_rank_phase_step_and_seconds_and_unknown_ranks(ranks):
    ranks |= {0: _state(0, 0, "start", seconds=4.0), 1: _state(1, 41, "session")}
    # Before the first step all work where they wait; the one that asks is not the one that is missing.
    assert "rank 0 on" not in RankStates("anywhere", 2, own=0).describe_missing()
    ranks |= {0: _state(0, 41, "session"), 1: _state(1, 41, "read", seconds=4.0)}
    observer = RankStates("anywhere", 3, own=0)
    text = observer.describe_missing()
    assert text.startswith("rank 1 on host is missing: in read of step 41 since ")
    assert ", for 4 s; nothing is known of rank 2: it has left the training" in text
    ranks[1] = _state(1, 41, "session")
    text = observer.describe_missing()
    assert "no rank is behind (rank 0 in session of step 41, rank 1 in session of step 41)" in text
    ranks |= {0: _state(0, 41, "session", written=9.0), 2: _state(2, 41, "session")}
    observer.describe_missing()
    ranks.now, ranks[0] = 9.0, _state(0, 41, "session", written=18.0)
    assert "for 39 s, without a sign of life for 9 s: its process is stopped or dead" in observer.describe_missing()


def test_of_many_missing_ranks_some_are_named_and_all_are_counted(ranks):
    ranks |= {rank: _state(rank, 7, "read") for rank in range(20)}
    assert RankStates("anywhere", 20, own=0).describe_missing().endswith("and 12 more ranks")


def test_a_rank_whose_file_does_not_change_is_lost_however_clocks_differ(ranks):
    ranks |= {rank: _state(rank, 7, "checkpoint", written=-5000.0 * rank) for rank in range(2)}
    observer = RankStates("anywhere", 2, own=0, lost_seconds=60.0)
    for now in (1.0, 31.0, 59.0, 70.0):
        ranks.now, ranks[0] = now, dataclasses.replace(ranks[0], written=now)
        said = observer.lost()
        assert bool(said) == (now == 70.0)
    assert said.startswith("rank 1 on host has given no sign of life for 69 s, in checkpoint of step 7: its process is")


def test_ranks_that_were_stopped_together_with_this_one_are_not_lost(ranks):
    """As a machine that is moved: the time has gone on, and the next states come a moment later."""
    ranks[0] = _state(0, 7, "session")
    observer = RankStates("anywhere", 1, own=0, lost_seconds=60.0)
    assert observer.lost() == ""
    ranks.now, ranks.after_sleep = 100.0, lambda: ranks.update({0: _state(0, 7, "session", written=100.0)})
    assert observer.lost() == ""
