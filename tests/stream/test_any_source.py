"""What a reader does with any source: one in memory, which needs no change elsewhere."""

import contextlib
import itertools
import threading
import time

import pytest

from ctr_trainer.live.stream import coordinator, planner
from ctr_trainer.live.stream.coordinator import Coordinator
from ctr_trainer.live.stream.figures import Figures
from ctr_trainer.live.stream.plan import Directive, Report, StreamPosition, Window, evenly, share_out
from ctr_trainer.live.stream.source import DeadLetters, Message, Range, Unavailable, lost_text
from ctr_trainer.settings.training_configs import StreamConfig
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes.waiting import call_within


class MemorySource:
    """A stream in memory, whose first records may be removed.

    Attributes:
      records: by partition, the values from offset 0 on.
      first: by partition, the offset of the first record that is kept.
      is_away: whether the brokers do not answer.
      refusal: the error of a commit; None for none.
    """

    name, address, trouble, its_id, has_gaps = "memory", "here", "", "", True
    refusal = None

    def __init__(self, *counts):
        self.records = {partition: [b"{}"] * count for partition, count in enumerate(counts)}
        self.first, self.is_away, self.committed = dict.fromkeys(self.records, 0), False, None

    def partitions(self):
        if self.is_away:
            raise Unavailable("memory is away")
        return list(self.records)

    def identity(self):
        return self.its_id

    def earliest(self, partitions):
        return {p: self.first.get(p, 0) for p in partitions}

    def latest(self, partitions, exact=False):
        self.partitions()
        return {p: len(self.records[p]) for p in partitions}

    def lost(self, places):
        first = self.earliest(list(places))
        return {p: lost_text(self, p, at, first[p], first[p] - at) for p, at in places.items() if at < first[p]}

    def at_time(self, partitions, seconds):
        return {p: min(int(seconds), len(self.records[p])) for p in partitions}

    def count(self, partition, start, stop, most):
        return min(stop - start, most)

    def backlog(self, partition, start, stop):
        return stop - start

    def after(self, partition, start, stop, count):
        return min(start + count, stop)

    def read(self, place):
        yield [Message(place.partition, at, 0.0, b"{}") for at in range(place.start, place.stop)]

    def watermarks(self):
        return {}

    def commit(self, offsets):
        if self.refusal:
            raise self.refusal
        self.committed = offsets

    def text(self, offset):
        return str(offset)

    def close(self):
        pass


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(planner, "_CHECK_SECONDS", 0.05)
    monkeypatch.setattr(planner, "_RETRY_SECONDS", 0.05)
    monkeypatch.setattr(coordinator, "_REST_SECONDS", 0.5)


class Reading:
    """A worker that takes what a `Coordinator` plans, without decoding it. Numbers are records of so many rows."""

    def __init__(self, source, config, position=None, **settings):
        self._source = source
        self.coordinator = Coordinator(lambda: source, config, position, 1, 4, DeadLetters(), Figures(), **settings)
        self.ranges = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        with contextlib.suppress(UserError):
            for number in itertools.count():
                share = self.coordinator.share(number)
                if share is None:
                    return
                self.ranges += share
                records = [r for each in share for r in self._source.records[each.partition][each.start : each.stop]]
                rows = sum(1 if record == b"{}" else record for record in records)
                cuts = [(0, share[0].start, 0, 0)] * -(-rows // 4)
                self.coordinator.report(number, Report(rows, cuts, [], 0.0, {}))

    def directives(self):
        number = 0
        while (directive := self.coordinator.directive(number)).kind != "end":
            yield directive
            number += 1

    def windows(self):
        return (each for each in self.directives() if each.kind == "window")

    @property
    def offsets(self):
        return sorted((each.partition, at) for each in self.ranges for at in range(each.start, each.stop))


def test_records_that_retention_removed_end_the_training():
    source = MemorySource(20)
    source.first[0] = 7
    reading = Reading(source, StreamConfig(), StreamPosition("memory", "checkpoint", {0: 3}))
    with pytest.raises(UserError, match="offset 3, but the first one that here still has is at offset 7, so 4 records"):
        list(reading.directives())
    source.first[0] = 0
    reading = Reading(source, StreamConfig(wait_secs=0.05), StreamPosition("memory", "checkpoint", {0: 3}))
    found = reading.windows()
    next(found)
    source.first[0], source.records[0] = 30, [b"{}"] * 31
    with pytest.raises(UserError, match="records are lost"):
        list(found)


def test_a_stream_that_is_made_anew_while_it_is_read_ends_the_training():
    source = MemorySource(8)
    source.its_id = "first"
    reading = Reading(source, StreamConfig(wait_secs=0.05))
    found = reading.directives()
    assert next(each for each in found if each.kind == "window")
    assert reading.coordinator.position_after(9).identity == "first"
    source.its_id = ""  # The brokers do not tell it now.
    assert next(found).kind == "rest"
    source.its_id = "second"
    with pytest.raises(UserError, match="its ID is second, and first was trained"):
        list(found)


def test_partitions_that_are_added_are_read_from_their_first_record():
    source = MemorySource(8)
    reading = Reading(source, StreamConfig(wait_secs=0.05))
    found = reading.windows()
    next(found)
    source.first[1], source.records[1] = 2, [b"{}"] * 6
    while len(reading.offsets) < 12:
        next(found)
    assert reading.offsets == [(0, at) for at in range(8)] + [(1, at) for at in range(2, 6)]
    reading.coordinator.close()


def test_brokers_that_are_away_are_waited_for_with_batches_of_padding():
    source = MemorySource(8)
    source.is_away = True
    reading = Reading(source, StreamConfig(wait_secs=0.05))
    found = reading.directives()
    assert next(found).kind == "rest" and reading.coordinator.position_after(1) is None
    source.is_away = False
    assert next(each for each in found if each.kind != "rest").kind == "window"
    assert reading.coordinator.figures.waiting_seconds > 0
    reading.coordinator.commit(StreamPosition("memory", "checkpoint", {0: 8}, (Range(0, 5, 8),)))
    assert source.committed == {0: 5}
    reading.coordinator.close()


def test_a_quiet_stream_completes_each_step_at_once():
    reading = Reading(MemorySource(0), StreamConfig(), per_step=4)
    assert next(reading.directives()) == Directive("rest", steps=4)
    reading.coordinator.close()
    reading = Reading(MemorySource(12), StreamConfig(wait_secs=0.05), per_step=4)
    found = itertools.dropwhile(lambda each: each.kind == "rest", reading.directives())
    assert (next(found).steps, next(found)) == (3, Directive("rest", steps=1))
    reading.coordinator.close()


def test_a_stream_whose_end_is_in_the_future_rests_as_one_without_end(monkeypatch):
    monkeypatch.setattr(coordinator, "_REPLAY_REST_SECONDS", 3600.0)
    reading = Reading(MemorySource(0), StreamConfig(until="2099-01-01T00:00:00Z"))
    assert call_within(60, lambda: reading.coordinator.directive(0)).kind == "rest"
    reading.coordinator.close()


def test_a_commit_that_is_refused_is_only_a_warning(caplog):
    source = MemorySource(8)
    reading = Reading(source, StreamConfig(wait_secs=0.05))
    next(reading.directives())
    for source.refusal in (UserError("READONLY"), Unavailable("away"), TimeoutError("slow"), RuntimeError("closed")):
        reading.coordinator.commit(StreamPosition("memory", "checkpoint", {0: 8}))
        assert "not committed" in caplog.messages[-1] and caplog.messages[-1].endswith(f": {source.refusal}")
    reading.coordinator.close()


def test_a_commit_that_hangs_delays_no_checkpoint(monkeypatch, caplog):
    monkeypatch.setattr(coordinator, "_COMMIT_SECONDS", 0.2, raising=False)
    source, is_back, commits = MemorySource(8), threading.Event(), []
    reading, position = Reading(source, StreamConfig(wait_secs=0.05)), StreamPosition("memory", "checkpoint", {0: 8})
    next(reading.directives())
    monkeypatch.setattr(source, "commit", lambda offsets: commits.append(offsets) or is_back.wait(20))
    reading.coordinator.commit(position)
    assert "no answer within 0.2 s" in caplog.messages[-1]
    reading.coordinator.commit(position)
    assert "the previous commit has not ended" in caplog.messages[-1] and len(commits) == 1
    is_back.set()
    for _ in range(200):  # The thread of the first commit ends soon.
        if len(commits) == 1:
            time.sleep(0.05)
            reading.coordinator.commit(position)
    assert len(commits) == 2
    reading.coordinator.close()


def test_the_lag_is_that_of_all_records_and_not_of_a_window():
    source, figures = MemorySource(100_000, 10), Figures()
    plan = planner.Planner(source, StreamConfig(), 1, 4, figures, time.sleep, lambda: source)
    plan.begin(None)
    assert plan.next({}, 1.0).messages == 32 and figures.lag_records == 100_010
    plan.next({}, 1.0)
    assert figures.lag_records == 100_010 - 32


def test_a_window_without_rows_behind_the_one_in_training_changes_no_position(monkeypatch):
    monkeypatch.setattr(coordinator, "_REST_SECONDS", 3600.0)
    source = MemorySource(32)
    reading = Reading(source, StreamConfig(wait_secs=0.05))
    found = reading.windows()
    assert next(found).steps == 8
    source.records[0].append(0)
    assert next(found).steps == 0
    position = reading.coordinator.position_after(5)
    assert position.next == {0: 32} and position.left
    assert reading.coordinator.position_after(9).next == {0: 33}
    reading.coordinator.close()


def test_records_are_divided_evenly_among_partitions_and_workers():
    assert evenly({0: 100, 1: 10, 2: 100, 3: 0}, 65) == {0: 27, 1: 10, 2: 28, 3: 0}
    pieces = [(Range(0, 0, 28), 28), (Range(1, 0, 10), 10), (Range(2, 0, 26), 26)]
    assert share_out(MemorySource(), pieces, 2) == [
        [Range(0, 0, 28), Range(1, 0, 4)],
        [Range(1, 4, 10), Range(2, 0, 26)],
    ]
    assert share_out(MemorySource(), [(Range(0, 4, 8, row=2), 4)], 3) == [
        [Range(0, 4, 5, row=2)],
        [Range(0, 5, 6)],
        [Range(0, 6, 8)],
    ]


def test_what_is_left_of_a_window_is_what_its_cuts_say():
    shares = [[Range(0, 0, 10), Range(1, 0, 4)], [Range(1, 4, 9)]]
    cuts = [[(0, 0, 0, 0), (0, 6, 0, 1), (1, 2, 3, 1)], [(0, 4, 0, 0)]]
    bad = [{"offset": 5}], [{"offset": 8}]
    reports = {rank: Report(rows, cuts[rank], bad[rank], 0.0, {}) for rank, rows in ((0, 12), (1, 4))}
    window = Window(shares, {0: 10, 1: 9}, 19, reports)
    assert window.steps(5) == 3
    assert window.left_after(1) == [Range(0, 6, 10), Range(1, 0, 4)] and window.bad_before(1) == 2
    assert window.left_after(2) == [Range(1, 2, 4, row=3)]
    assert window.left_after(3) == [] and window.bad_before(3) == 2


def test_few_records_become_a_window_as_soon_as_their_wait_is_over(monkeypatch):
    monkeypatch.setattr(coordinator, "_POLL_SECONDS", 3600.0)
    reading = Reading(MemorySource(3), StreamConfig(wait_secs=0.05))
    assert any(each.kind == "window" for each in itertools.islice(reading.directives(), 60))
    reading.coordinator.close()


def test_the_next_windows_are_as_long_as_the_rows_of_the_last_one_say():
    source = MemorySource(3200)
    source.records[0] += [100] * 640
    reading = Reading(source, StreamConfig(until="latest"))
    assert sum(each.kind == "window" for each in reading.directives()) > 100
    lengths = [each.stop - each.start for each in reading.ranges if each.start >= 3200]
    assert lengths[:2] == [32, 32] and set(lengths[2:]) == {8}


def test_a_window_without_rows_does_not_change_the_length_of_the_next_ones():
    source = MemorySource(0)
    source.records[0] += [*[100] * 80, *[0] * 24, *[100] * 40]
    reading = Reading(source, StreamConfig(until="latest"))
    assert sum(each.kind == "window" for each in reading.directives()) == 12
    assert [each.stop - each.start for each in reading.ranges] == [32, 32, *[8] * 10]
