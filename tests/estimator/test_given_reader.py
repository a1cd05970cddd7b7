"""A reader that an `input_fn` returned, by what it says and by what it leaves out."""

import types

import pytest

from ctr_trainer.estimator.inputs import GivenReader
from ctr_trainer.graph_notes.run_length import Epochs
from ctr_trainer.system.measuring import latency


class Plain:
    """Three batches, and no more than a reader must have."""

    spec, statistics, batch_size = "spec", {"price": "old"}, 4

    def __iter__(self):
        return iter("abc")


class Full(Plain):
    """Says all that a reader may."""

    steps, steps_per_epoch, steps_before, epochs = 3, 6, 9, 2

    def __init__(self, statistics=Plain.statistics):
        self.statistics = statistics

    def with_statistics(self, statistics):
        return Full(statistics)

    def position_after(self, steps):
        return {"at": steps}


def test_what_a_reader_does_not_know_is_none_and_its_batches_are_measured_from_outside():
    reader = GivenReader(Plain())
    assert (reader.spec, reader.statistics, reader.batch_size) == ("spec", {"price": "old"}, 4)
    assert [reader.steps, reader.steps_per_epoch, reader.in_epochs, reader.epochs] == [None] * 4
    assert reader.position_after(1) is None
    assert [list(reader), list(reader)] == [["a", "b", "c"]] * 2
    assert reader.read_latency.name == "OpsReadSample"
    assert reader.read_latency.total_count == 6


def test_what_a_reader_knows_is_taken_from_it():
    reader = GivenReader(Full())
    assert (reader.steps, reader.steps_per_epoch, reader.in_epochs, reader.epochs) == (3, 6, Epochs(6, 9), 2)
    assert reader.position_after(5) == {"at": 5}


def test_statistics_of_a_model_replace_those_of_a_reader_that_can():
    assert GivenReader(Full()).with_statistics({"price": "new"}).statistics == {"price": "new"}
    with pytest.raises(AttributeError, match="with_statistics"):
        GivenReader(Plain()).with_statistics({})


def test_each_batch_is_timed_by_itself(monkeypatch):
    """A batch that waits for a piece of the data to be read takes long, and the batches cut from that piece do not."""
    now = [0]
    monkeypatch.setattr(latency, "time", types.SimpleNamespace(perf_counter_ns=lambda: now[0]))

    class Pieces(Plain):
        def __iter__(self):
            for batch in range(100):
                now[0] += 1000 * (500 if batch % 25 == 0 else 10 + batch)
                yield batch

    reader = GivenReader(Pieces())
    assert len(list(reader)) == 100
    assert reader.read_latency.percentiles() == {"count": 100, "P50": 62, "P95": 108, "P99": 500, "Max": 500}
