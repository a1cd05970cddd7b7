"""The lines and the bar that say how far a training is."""

import io
import sys
import types

import pytest

from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator.hooks.log_hooks import TrainingProgress
from ctr_trainer.estimator.run_length import RunLength
from ctr_trainer.models.metrics.click_metrics import Line
from ctr_trainer.system.measuring.clock import Clock
from tests import small


def test_reader_knows_how_many_steps_are_left_of_it(tmp_path):
    data = small.make(tmp_path, rows=100)
    settings = dict(rank=0, size=3, seed=1)
    assert BatchReader(data, 16, **settings).steps is None
    reader = BatchReader(data, 16, epochs=2, **settings)
    assert reader.steps == 2 * 3 == len(list(reader))  # shares of 34, 33 and 33 rows: 3 batches
    resumed = BatchReader(data, 16, epochs=2, position=reader.position_after(4), **settings)
    assert resumed.steps == 2 == len(list(resumed))
    assert BatchReader(data, 16, epochs=2, position=reader.position_after(6), **settings).steps == 0


@pytest.mark.parametrize(
    ("last_step", "steps", "epochs", "expected"),
    [
        (10_000, None, None, "step 2800 of 10000 (28%), 2 min 0 s left"),
        (10_000, 5000, 5, "step 2800 of 5000 (56%), epoch 1.4 of 5, 37 s left"),
        (None, None, None, "step 2800"),
    ],
)
def test_a_line_says_how_far_the_training_is_and_how_long_it_will_take(caplog, last_step, steps, epochs, expected):
    epoch = (lambda done: done / 2000) if epochs else (lambda done: None)
    now = [5.0]
    clock = types.SimpleNamespace(training_seconds=lambda: now[0])
    progress = TrainingProgress(clock, RunLength(batches=steps, last=last_step), epoch, epochs)
    with caplog.at_level("INFO"):
        progress.start(0)
        for step, seconds in ((1600, 25.0), (2800, 51.67)):  # 1,600 steps took 20 s, 1,200 more 26.67 s.
            now[0] = seconds
            progress.take(Line(step, "", {}, 1.0, None))
    said = [record.getMessage() for record in caplog.records if record.name.endswith("log_hooks")]
    assert said[1] == expected


def test_where_early_stopping_may_end_it_the_figures_are_upper_bounds(caplog):
    clock = types.SimpleNamespace(training_seconds=iter((0.0, 10.0)).__next__)
    progress = TrainingProgress(clock, RunLength(batches=5000), lambda done: done / 2000, 40, stops_early=True)
    with caplog.at_level("INFO"):
        progress.start(0)
        progress.take(Line(1000, "", {}, 100.0, None))
    assert caplog.messages == ["step 1000 of at most 5000 (20%), epoch 0.5 of at most 40, at most 40 s left"]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_gets_a_bar_of_the_steps_and_a_file_gets_none(monkeypatch, is_terminal):
    shown = io.StringIO()
    shown.isatty = lambda: is_terminal
    monkeypatch.setattr(sys, "stderr", shown)
    progress = TrainingProgress(Clock(), RunLength(last=30))
    progress.start(10)
    for step in range(11, 31):
        progress.stepped(step)
    progress.close()
    assert ("30/30" in shown.getvalue() and "10/30" in shown.getvalue()) if is_terminal else not shown.getvalue()
