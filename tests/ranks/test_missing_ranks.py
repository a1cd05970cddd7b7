import dataclasses

import pytest

from ctr_trainer.ranks import liveness
from ctr_trainer.ranks.liveness import Beat, Heartbeat, SignsOfLife, missing
from ctr_trainer.ranks.liveness import describe_missing as describe
from ctr_trainer.ranks.liveness import read_beat as read
from ctr_trainer.system.measuring.clock import Clock
from tests.parallel import launch

NOW = 1_000_000.0


def _beat(rank, step, phase, alive=NOW - 1, since=NOW - 30):
    return Beat(rank, step, phase, since, alive, "host")


def _wait_for(directory, *phases):
    """Returns once the ranks' files say that they are in these phases."""
    launch.wait_until(lambda: tuple(read(directory, r).phase for r in range(len(phases))) == phases, "the files", 30)


@pytest.mark.parametrize(
    ("beats", "ranks"),
    [
        ([_beat(0, 7, "session"), _beat(1, 7, "read"), _beat(2, 7, "session")], [1]),
        ([_beat(0, 7, "session"), _beat(1, 6, "session"), _beat(2, 7, "read")], [1]),  # further behind than 2
        ([_beat(0, 7, "session"), _beat(1, 7, "session", alive=NOW - 9)], [1]),  # it may wait, but it does not live
        ([_beat(0, 7, "checkpoint"), _beat(1, 7, "hooks"), _beat(2, 7, "update")], [1, 2]),
        ([_beat(0, 7, "session"), _beat(1, 7, "session")], []),
        ([], []),
    ],
)
def test_who_is_missing_is_who_does_not_live_or_else_who_is_furthest_behind(beats, ranks):
    assert [beat.rank for beat in missing(beats, NOW)] == ranks


def test_a_heartbeat_shows_the_phase_the_step_and_since_when(tmp_path, monkeypatch):
    monkeypatch.setattr("time.time", lambda: NOW)
    clock = Clock()
    heart = Heartbeat(tmp_path, 3, clock, period=0.01)
    assert (read(tmp_path, 3).phase, read(tmp_path, 3).step) == ("start", 0)
    monkeypatch.setattr("time.time", lambda: NOW + 5)
    clock.step = 12
    clock.enter("dense_sync")
    launch.wait_until(lambda: read(tmp_path, 3).step == 12, "the next beat", 30)
    beat = read(tmp_path, 3)
    assert (beat.rank, beat.step, beat.phase, beat.since) == (3, 12, "dense_sync", NOW + 5)
    heart.close()
    assert read(tmp_path, 3) is None
    assert list(tmp_path.iterdir()) == []
    clock.enter("hooks")  # nobody follows any more


def test_the_sentence_names_rank_phase_step_and_duration(tmp_path, monkeypatch):
    monkeypatch.setattr("time.time", lambda: NOW)
    first, second = Clock(), Clock()
    hearts = [Heartbeat(tmp_path, 0, first, period=0.01), Heartbeat(tmp_path, 1, second, period=0.01)]
    # Before the first step all work where they wait; the one that asks is not the one that is missing.
    assert "rank 0 on" not in describe(tmp_path, 2, own=0, now=NOW + 4)
    first.step = second.step = 41
    first.enter("session")
    second.enter("read")
    _wait_for(tmp_path, "session", "read")
    text = describe(tmp_path, 3, now=NOW + 4)
    assert "is missing: in read of step 41 since " in text
    assert text.startswith("rank 1 on ")
    assert ", for 4 s; nothing is known of rank 2: it has left the training" in text
    second.enter("session")
    _wait_for(tmp_path, "session", "session")
    assert "no rank is behind (rank 0 in session of step 41, rank 1 in session of step 41)" in describe(
        tmp_path, 2, now=NOW + 4
    )
    assert "without a sign of life for 9 s" in describe(tmp_path, 2, now=NOW + 9)
    for heart in hearts:
        heart.close()


def test_of_many_missing_ranks_some_are_named_and_all_are_counted(monkeypatch):
    beats = {rank: _beat(rank, 7, "read") for rank in range(20)}
    monkeypatch.setattr(liveness, "read_beat", lambda directory, rank: beats[rank])
    assert describe("anywhere", 20, now=NOW).endswith("and 12 more ranks")


def test_a_rank_without_a_new_heartbeat_is_lost_whatever_the_clocks_say(tmp_path, monkeypatch):
    class Now:
        seconds = 0.0

    beats = {rank: _beat(rank, 7, "checkpoint", alive=NOW - 5000 * rank) for rank in range(2)}
    monkeypatch.setattr("ctr_trainer.ranks.liveness.read_beat", lambda model_dir, rank: beats[rank])
    monkeypatch.setattr("time.monotonic", lambda: Now.seconds)

    def sleep(seconds):
        Now.seconds += seconds

    monkeypatch.setattr("time.sleep", sleep)
    signs = SignsOfLife(tmp_path, 2, 60.0)
    for now in (1.0, 31.0, 59.0, 70.0):
        Now.seconds = now
        beats[0] = dataclasses.replace(beats[0], alive=NOW + now)
        said = signs.problem()
        assert bool(said) == (now == 70.0)
    assert said.startswith("rank 1 on host has given no sign of life for 70 s, in checkpoint of step 7: its process is")


def test_ranks_that_were_stopped_together_with_this_one_are_not_lost(tmp_path, monkeypatch):
    """As a machine that is moved: the time has gone on, and the heartbeats come a moment later."""
    now, beats = [0.0], {0: _beat(0, 7, "session")}
    monkeypatch.setattr("ctr_trainer.ranks.liveness.read_beat", lambda model_dir, rank: beats[rank])
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.sleep", lambda seconds: beats.update({0: _beat(0, 7, "session", alive=NOW + 100)}))
    signs = SignsOfLife(tmp_path, 1, 60.0)
    assert signs.problem() == ""
    now[0] = 100.0
    assert signs.problem() == ""
