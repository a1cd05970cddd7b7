"""When checkpoints and evaluations are due, by hand."""

import contextlib

import pytest

from ctr_trainer.graph_notes.run_length import Epochs, RunLength
from ctr_trainer.hooks.checkpoint_hook import CheckpointHook
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


def _save_by_rank_0s_clock(seconds_of_step, period_seconds):
    """-> by rank, after which of 30 steps it saves, and how often it asks; the clocks of ranks 1 and 2 stand still."""

    def work(rank, all_sum, all_gather):
        now, saved, asked = Clock(), [], []
        clock = (lambda: now() * seconds_of_step) if rank == 0 else (lambda: 0)
        waiting = lambda what: contextlib.nullcontext()  # noqa: E731

        def add_up(told):
            asked.append(told)
            return all_sum(told, "checkpoint_due")

        period = SecondsOfChief(period_seconds, rank == 0, add_up, waiting, clock)
        hook = CheckpointHook(lambda session, step: saved.append(step), period)
        _run(lambda: [now, hook], steps=30)
        hook.close()
        return saved, len(asked)

    return Ranks(3).run(work)


def test_all_workers_save_after_the_same_step_by_rank_0s_clock():
    """A step of 1 s: rank 0 wishes after step 5, all know after step 6, and the next 5 s count from there."""
    assert _save_by_rank_0s_clock(1.0, 5) == [([6, 12, 18, 24, 30], 30)] * 3


def test_workers_with_short_steps_ask_rank_0_twice_a_second_and_not_after_each():
    """With steps of a tenth of a second they ask after steps 1, 2, 3, 8, 13, 18, 23, 28, once they know the rate."""
    assert _save_by_rank_0s_clock(0.1, 1) == [([18, 30], 8)] * 3
