"""The order in which the parts of a step, of its beginning and of the end of a training happen."""

import contextlib
import types

import pytest
import tensorflow as tf

from ctr_trainer.estimator.feed import Fed
from ctr_trainer.estimator.run_length import EverySteps
from ctr_trainer.estimator.step import OwnLoopHook, TrainingSteps
from ctr_trainer.ranks.meetings import Meetings, StopRequest
from ctr_trainer.system.measuring.clock import Clock

tf1 = tf.compat.v1


class Recorder:
    """Notes which of its methods are called."""

    def __init__(self, calls, name, **results):
        self._calls, self._name, self._results = calls, name, results
        vars(self).update({key: value for key, value in results.items() if not callable(value)})

    def __getattr__(self, method):
        def called(*arguments, **more):
            self._calls.append(f"{self._name}.{method}")
            return self._results.get(method, lambda *_: None)(*arguments)

        return called

    def __call__(self, *arguments):
        self._calls.append(self._name)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def made(clock):
    """(calls, TrainingSteps, StopRequest, session) of a training of two micro-batches a step that saves each second."""
    calls, stop = [], StopRequest()
    feed = Recorder(calls, "feed", next=lambda: Fed(), fetches=["g"], last_fetches=["g", "rate"], has_ended=False)
    dense = Recorder(calls, "dense", train_op="train_op", micro_batches=2, accumulate="accumulate")
    save = Recorder(calls, "save", path="model/step-2")
    training = types.SimpleNamespace(
        job=types.SimpleNamespace(start=0, last_step=None, config=types.SimpleNamespace(grace_secs=0.0), model_dir="m"),
        feed=feed,
        dense=dense,
        clock=clock,
        save=save,
        saves=EverySteps(2),
        meetings=Meetings(0, 1, None),
        input_ends=types.SimpleNamespace(noticed=contextlib.nullcontext),
    )
    hooks = types.SimpleNamespace(batches=None, metrics=Recorder(calls, "lines"))
    evaluation = Recorder(calls, "evaluation", evaluate_if_due=lambda *_: False, finish=lambda *_: True)
    session = Recorder(calls, "session", run=lambda fetches, feeds=None: {"feed": []} if feeds is not None else 0)
    with tf.Graph().as_default():
        yield calls, TrainingSteps(training, stop, hooks, evaluation, [Recorder(calls, "extension")]), stop, session


def test_a_step_trains_its_rows_before_it_syncs_saves_publishes_and_evaluates(made, clock):
    calls, steps, _, session = made
    micro_batch = ["feed.next", "session.run", "feed.add"]
    step = ["feed.next", "session.run", "feed.train"]
    due = ["dense.end_step", "feed.sync_if_due", "save.look"]
    last = ["extension.after_step", "evaluation.evaluate_if_due"]
    steps.train_step(session, session)
    assert calls == [*micro_batch, *step, *due, *last]
    assert clock.step == 1
    calls.clear()
    steps.train_step(session, session)
    assert calls == [*micro_batch, *step, *due, "save.begin", *last]
    assert (steps.step, steps.steps, steps.is_over) == (2, 2, False)


def test_rates_fall_before_rows_are_prepared_and_a_missing_evaluation_is_last(made):
    calls, steps, _, session = made
    steps.begin(session)
    prepared = ["feed.begin_training", "extension.begin"]
    assert calls == ["session.run", "evaluation.begin", *prepared, "evaluation.resume"]


def test_at_the_end_rows_are_flushed_and_saved_before_the_last_evaluation(made):
    calls, steps, _, session = made
    steps.train_step(session, session)
    calls.clear()
    steps.finish(session)
    assert calls == ["feed.flush", "save", "extension.finish", "lines.finish", "evaluation.finish"]
    assert steps.error is None


def test_a_signal_ends_the_training_after_the_step_without_an_evaluation(made):
    calls, steps, stop, session = made
    stop.ask(15)
    steps.train_step(session, session)
    assert steps.is_over
    steps.finish(session)
    assert not any(call.startswith("evaluation") for call in calls)
    assert str(steps.error).startswith("stopped by SIGTERM after step 1; the checkpoint model/step-2 is saved")


def test_in_a_step_of_a_program_the_messages_name_this_step(made, clock):
    _, steps, _, session = made
    hook = OwnLoopHook(steps, types.SimpleNamespace(next=Fed, last_fetches=[], train=lambda *_: None))
    context = types.SimpleNamespace(session=session, request_stop=lambda: None)
    for step in (1, 2):
        hook.before_run(context)
        assert clock.step == step
        hook.after_run(context, types.SimpleNamespace(results=[]))
