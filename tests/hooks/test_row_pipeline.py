"""Rows looked up and trained beside the steps: which steps a lookup sees, and what a sync or an error does."""

import threading

import pytest

from ctr_trainer.estimator.open_rows import RowPipeline


class Rows:
    """Counts how often its one row was trained; a lookup reads the count."""

    def __init__(self):
        self.trained, self.log = 0, []

    def look_up(self, lookups, create):
        assert create
        self.log.append(f"look up {lookups}")
        return self.trained

    def train(self, batch):
        self.log.append(f"train {batch}")
        self.trained += 1


def steps(pipeline, rows, count, seen):
    """Takes steps as `InputHook` does."""
    for _ in range(count):
        batch, prepared = pipeline.read()
        seen.append(pipeline.look_up(prepared))
        pipeline.train(rows.train, batch)


@pytest.fixture
def rows():
    return Rows()


@pytest.fixture
def pipeline(rows):
    pipeline = RowPipeline(rows.look_up, ((n, n) for n in range(6)))
    yield pipeline
    pipeline.close()


def test_a_step_reads_rows_that_lack_the_step_before_and_no_other(rows, pipeline):
    seen = []
    steps(pipeline, rows, 6, seen)
    assert seen == [0, 0, 1, 2, 3, 4]
    with pytest.raises(StopIteration):
        pipeline.read()
    pipeline.finish_pending()
    assert rows.trained == 6
    looked_up = ["look up 0", "look up 1"]
    assert rows.log == looked_up + [
        f"{what} {n + late}" for n in range(4) for what, late in (("train", 0), ("look up", 2))
    ] + ["train 4", "train 5"]


def test_after_a_sync_or_a_checkpoint_a_step_reads_rows_that_lack_nothing(rows, pipeline):
    seen = []
    steps(pipeline, rows, 3, seen)
    pipeline.finish_pending()
    assert rows.trained == 3
    steps(pipeline, rows, 3, seen)
    assert seen == [0, 0, 1, 3, 3, 4]


def test_settling_before_the_first_step_and_twice_changes_nothing(rows, pipeline):
    pipeline.finish_pending()
    seen = []
    steps(pipeline, rows, 2, seen)
    pipeline.finish_pending()
    pipeline.finish_pending()
    steps(pipeline, rows, 4, seen)
    assert seen == [0, 0, 2, 2, 3, 4]


def test_a_step_does_not_wait_for_the_training_of_the_one_before(rows, pipeline):
    gate, seen = threading.Event(), []

    def train(_):
        assert gate.wait(10)

    batch, prepared = pipeline.read()
    pipeline.look_up(prepared)
    pipeline.train(train, batch)
    steps(pipeline, rows, 1, seen)  # Its rows were looked up before.
    assert seen == [0]
    gate.set()


def test_what_a_training_raises_comes_out_of_a_later_step_or_of_the_sync(rows, pipeline):
    def fail(_):
        raise ValueError("the row is gone")

    batch, prepared = pipeline.read()
    pipeline.look_up(prepared)
    pipeline.train(fail, batch)
    with pytest.raises(ValueError, match="the row is gone"):
        pipeline.finish_pending()


def test_an_end_without_a_sync_leaves_no_thread(rows):
    pipeline = RowPipeline(rows.look_up, iter([(0, 0), (1, 1)]))
    steps(pipeline, rows, 1, [])
    pipeline.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("embedding rows")]
