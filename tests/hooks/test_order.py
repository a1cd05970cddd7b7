"""Hooks declare their phase and their order, and one function sorts them."""

import importlib
import inspect
import pkgutil

import pytest
import tensorflow as tf

from ctr_trainer.estimator import batch_feed
from ctr_trainer.estimator import hooks as package
from ctr_trainer.estimator.hooks.step_hook import Order, in_order
from ctr_trainer.system.measuring.clock import PHASES

tf1 = tf.compat.v1


def _hook_classes():
    modules = [
        importlib.import_module(f"{package.__name__}.{each.name}") for each in pkgutil.iter_modules(package.__path__)
    ]
    found = {each for module in [*modules, batch_feed] for _, each in inspect.getmembers(module, inspect.isclass)}
    return sorted(
        (each for each in found if issubclass(each, tf1.train.SessionRunHook)), key=lambda each: each.__name__
    )


HOOKS = {each.__name__: each for each in _hook_classes()}


def _sorted_names(*names):
    """Returns the class names in the order of their hooks, which are passed in reverse order."""
    hooks = [HOOKS[name].__new__(HOOKS[name]) for name in reversed(names)]
    return [type(hook).__name__ for hook in in_order(hooks)]


@pytest.mark.parametrize("hook", [each for each in HOOKS.values() if hasattr(each, "phase")])
def test_each_hook_s_time_is_of_a_phase_of_the_table(hook):
    assert hook.phase in PHASES


def test_a_step_is_trained_before_it_is_handed_on_saved_evaluated_and_counted():
    names = (
        *("StepClockHook", "InputHook", "FiniteLossHook", "DenseSyncHook", "RowSyncHook"),
        *("CheckpointHook", "MetricsHook", "RunStatusHook", "EvaluationHook", "StepTraceHook"),
        "SessionClockHook",
    )
    assert _sorted_names(*names) == list(names)


def test_users_hooks_act_in_their_order_after_saves_before_evaluations():
    class Mine(tf1.train.SessionRunHook):
        pass

    first, second = Mine(), Mine()
    saving, evaluating = (HOOKS[name].__new__(HOOKS[name]) for name in ("CheckpointHook", "EvaluationHook"))
    assert in_order([first, evaluating, second, saving]) == [saving, first, second, evaluating]
    assert Order.SAVE < Order.OTHER < Order.EVALUATE
