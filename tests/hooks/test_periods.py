"""When checkpoints and evaluations are due, by hand."""

import contextlib

import numpy as np
import pytest

from ctr_trainer.graph_notes.run_length import Epochs, RunLength
from ctr_trainer.hooks.checkpoint_hook import CheckpointHook
from ctr_trainer.hooks.merged_lines import MergedLines
from ctr_trainer.hooks.periods import EveryEpochs, EverySeconds, SecondsOfChief
from ctr_trainer.hooks.step_hook import StepHook
from ctr_trainer.messages.errors import UserError
from tests.hooks.test_hooks import _run
from tests.metrics.ranks import Ranks

FLAGS = ("eval_epochs", "eval_steps")


@pytest.mark.parametrize(
    ("epochs", "start", "before", "accumulation_steps", "expected"),
    [
        (1, 0, 0, 1, [5, 10, 15, 20]),
        (2, 0, 0, 1, [10, 20]),
        (1, 7, 7, 1, [10, 15, 20]),  # going on in the middle of an epoch
        (2, 10, 10, 1, [20]),  # at the end of one
        (1, 7, 3, 1, [9, 14, 19]),  # on another number of workers: 3 of an epoch's 5 batches are over
        (2, 7, 13, 1, [14]),
        (1, 0, 0, 2, [3, 5, 8, 10, 13, 15, 18, 20]),  # the step by which the epoch is over
        (1, 0, 0, 15, list(range(1, 21))),  # three epochs a step
    ],
)
def test_the_ends_of_epochs_in_steps_of_batches_of_which_an_epoch_has_five(
    epochs, start, before, accumulation_steps, expected
):
    length = RunLength(start=start, epochs=Epochs(5, before))
    period = EveryEpochs(epochs, length, accumulation_steps, FLAGS)
    assert [step for step in range(start + 1, 21) if period.is_due(step)] == expected


def test_an_input_without_epochs_is_refused_with_the_flag_in_steps():
    with pytest.raises(UserError, match="--eval_epochs=2: the input does not say .* count in steps, --eval_steps"):
        EveryEpochs(2, RunLength(), 1, FLAGS)


class Clock(StepHook):
    """Goes on by a second after each step."""

    now = 0

    def __call__(self):
        return self.now

    def after_step(self, run_context, run_values):
        self.now += 1


def test_one_worker_saves_when_the_time_is_over_counted_from_the_last_checkpoint():
    clock, saved = Clock(), []

    def save(session, step):
        saved.append(step)
        clock.now += 10  # which takes long, and does not count

    _run(lambda: [clock, CheckpointHook(save, EverySeconds(3, clock))], steps=8)
    assert saved == [3, 6, 8]


class Line(StepHook):
    """Puts a line of the log every `every` steps, as `MetricsHook` does; looks for the last one's after each step."""

    def __init__(self, lines, every):
        super().__init__()
        self._lines, self._every, self.sums = lines, every, []

    def after_step(self, run_context, run_values):
        self._take(self._lines.ready())
        if self.step % self._every == 0:
            self._take(self._lines.put(self.step, np.array([1.0, self.step])))

    def end(self, session):
        self._take(self._lines.finish())

    def _take(self, lines):
        self.sums += [(step, sums.tolist()) for step, sums, _ in lines]


@pytest.mark.parametrize("every", [1, 4])
def test_all_workers_save_after_the_same_step_by_rank_0s_clock(every):
    """Rank 0's clock says 5 s after step 5, the others' never; then the line after the next one."""

    def work(rank, all_sum, all_gather):
        clock, saved = Clock(), []
        wish = SecondsOfChief(5, rank == 0, clock if rank == 0 else lambda: 0)
        waiting = lambda what: contextlib.nullcontext()  # noqa: E731
        line = Line(MergedLines(rank, 3, lambda sums: all_sum(sums, "figures"), waiting, wish), every)
        _run(lambda: [clock, CheckpointHook(lambda session, step: saved.append(step), wish), line], steps=30)
        return saved, line.sums

    zero, *others = Ranks(3).run(work)
    assert [saved for saved, _ in others] == [zero[0]] * 2
    # Asked for at the first line with 5 s or more since the last checkpoint, granted at the next, done a step later.
    assert zero[0] == ([7, 14, 21, 28, 30] if every == 1 else [13, 25, 30])
    # What the log shows is without the wish.
    assert zero[1] == [(step, [3.0, 3.0 * step]) for step in range(every, 31, every)]


def test_a_line_that_is_ready_early_on_one_rank_does_not_let_it_save_before_the_others():
    now = [0]
    wish = SecondsOfChief(5, True, lambda: now[0])
    lines = MergedLines(0, 2, lambda sums: 2 * sums, lambda what: contextlib.nullcontext(), wish)
    now[0] = 5
    lines.put(4, np.ones(2))
    while not lines.ready():
        pass
    assert not wish.is_due(5)
    lines.put(8, np.ones(2))
    assert wish.is_due(9)
    wish.begin()
    assert not wish.is_due(10)
    lines.close()
