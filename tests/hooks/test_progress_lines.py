import pytest

from ctr_trainer.hooks.progress_hooks import TrainingProgressHook
from ctr_trainer.measuring.clock import Clock
from ctr_trainer.metrics.line_sums import Line
from tests.hooks.test_hooks import _run


@pytest.mark.parametrize(
    ("last_step", "steps", "epochs", "expected"),
    [
        (10_000, None, None, "step 2800 of 10000 (28%), 2 min 0 s left"),
        (10_000, 5000, 5, "step 2800 of 5000 (56%), epoch 1.4 of 5, 37 s left"),
        (None, None, None, "step 2800"),
    ],
)
def test_a_line_says_how_far_the_training_is_and_how_long_it_will_take(caplog, last_step, steps, epochs, expected):
    """Without a terminal, which pytest's standard error is not; 1,600 steps took 20 s, 1,200 more 26.67 s."""
    hooks = []

    def make():
        epoch = (lambda done: done / 2000) if epochs else (lambda done: None)
        hooks.append(TrainingProgressHook(Clock(), True, 1024, last_step, steps, epoch, epochs))
        return hooks

    with caplog.at_level("INFO"):
        _run(make, steps=1)
        hooks[0].take(Line(1600, "", {}, 80.0, None))
        hooks[0].take(Line(2800, "", {}, 45.0, None))
    said = [record.getMessage() for record in caplog.records if record.name.endswith("progress_hooks")]
    assert said[1] == expected
