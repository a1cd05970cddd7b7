"""The learning rates and the optimizers of the dense variables, as TensorFlow operations."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.estimator.run_length import RunLength
from ctr_trainer.settings.optimizers import DenseOptimizer
from ctr_trainer.settings.train_settings import Schedule, TrainSettings, factors_of, parse_lr_groups
from ctr_trainer.system.messages.errors import UserError

_ops = tf.raw_ops
COOLDOWN_SHARE = 0.2  # Of the run's steps.
# Largest error of a quotient, added before the quotient is rounded down.
_ROUNDING = 1e-9


class DenseUpdate(tf1.train.Optimizer):
    """Applies the `DenseOptimizer` of `TrainSettings` with regularization, through TensorFlow 1's optimizer interface.

    Adds `l2 * w` to the gradient of each kernel w, then clips the gradients, then applies them. `learning_rate` is a
    scalar tensor, and `step` a scalar integer tensor, the number of optimizer steps before this one.

    Attributes:
      weight: scalar float32, the sum of the weights of the step's examples. If it is 0, as in a step of padding, no
        variable moves, so that a quiet stream does not shrink the model; moments still decay.
    """

    weight: tf.Tensor | float = 1.0

    def __init__(self, settings: TrainSettings, learning_rate: tf.Tensor, step: tf.Tensor) -> None:
        super().__init__(use_locking=False, name=settings.dense_optimizer.name)
        self._settings, self._learning_rate, self._step = settings, learning_rate, step

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[tf.Tensor, tf.Variable]],
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> tf.Operation:
        """Returns an operation that updates each resource variable once. The caller increments `global_step`."""
        pairs, settings = list(grads_and_vars), self._settings
        gradients, variables = [g for g, _ in pairs], [v for _, v in pairs]
        with tf.name_scope(name or "dense_update"):
            moves = tf.cast(tf.convert_to_tensor(self.weight) > 0, tf.float32)
            if settings.l2:
                # The gradient of a kernel with one row is a matrix product. TensorFlow 2.21 mistakes an addition to it
                # for a bias and rejects the shape. It does not change a subtraction.
                gradients = [g - tf.cast(-settings.l2 * moves, g.dtype) * v if is_kernel(v) else g for g, v in pairs]
            if settings.clip_norm:
                gradients, _ = tf.clip_by_global_norm(gradients, settings.clip_norm)
            factors = factors_of(parse_lr_groups(settings.lr_groups), variables)
            rates = [self._learning_rate if factor == 1 else factor * self._learning_rate for factor in factors]
            steps = zip(variables, gradients, rates, strict=True)
            return tf.group(*(update(settings.dense_optimizer, v, g, rate, self._step, moves) for v, g, rate in steps))


def update(
    optimizer: DenseOptimizer,
    variable: tf.Variable,
    gradient: tf.Tensor,
    learning_rate: tf.Tensor,
    step: tf.Tensor,
    moves: tf.Tensor | float = 1.0,
) -> tf.Operation:
    """Returns the operation of one update. The docstring of the optimizer's class has the equation.

    `step` is t, a scalar integer tensor that is read before this step increments it. `moves` is 0 to leave the variable
    as it is, if the gradient is 0, else 1.
    """
    rule = RULES[optimizer.name]
    learning_rate, moves = (tf.cast(each, variable.dtype.base_dtype) for each in (learning_rate, moves))
    moved, count = moves * learning_rate, tf.cast(step + 1, variable.dtype.base_dtype)
    decays = optimizer.weight_decay and is_kernel(variable) and rule is not _lamb
    with tf.control_dependencies([gradient]):  # So that all operations before the gradient have read the variable.
        decay = _decay(optimizer, variable, moved) if decays else []
    with tf.control_dependencies(decay):  # FTRL moves nothing without a gradient; a rate of 0 would undo its penalties.
        return rule(optimizer, variable, gradient, learning_rate if rule is _ftrl else moved, count)


def _decay(optimizer: Any, w: tf.Variable, lr: tf.Tensor) -> list[tf.Operation]:
    decay = lr * optimizer.weight_decay * w
    operations = [w.assign_sub(decay, read_value=False)]
    if optimizer.name == "ftrl":
        n, z = _ftrl_state(optimizer, w)
        operations.append(z.assign_add(decay * (tf.sqrt(n) + 2 * lr * optimizer.ftrl_l2), read_value=False))
    return operations


def is_kernel(variable: tf.Variable) -> bool:
    """Returns whether weight decay and L2 apply: to variables of rank 2 or more, not to biases or normalizations."""
    return variable.shape.rank >= 2


def _state(variable: tf.Variable, name: str, value: float = 0.0) -> tf.Variable:
    """Returns the slot variable `name` of a variable. All its elements are initialized to `value`."""
    name, initializer = f"{variable.op.name}/{name}", tf1.constant_initializer(value)
    with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
        return tf1.get_variable(name, variable.shape, variable.dtype.base_dtype, initializer, trainable=False)


def _sgd(_: Any, w: tf.Variable, g: tf.Tensor, lr: tf.Tensor, count: tf.Tensor) -> tf.Operation:
    return _ops.ResourceApplyGradientDescent(var=w.handle, alpha=lr, delta=g)


def _momentum(settings: Any, w: tf.Variable, g: tf.Tensor, lr: tf.Tensor, count: tf.Tensor) -> tf.Operation:
    m = _state(w, "Momentum")
    return _ops.ResourceApplyMomentum(var=w.handle, accum=m.handle, lr=lr, grad=g, momentum=settings.momentum)


def _adagrad(settings: Any, w: tf.Variable, g: tf.Tensor, lr: tf.Tensor, count: tf.Tensor) -> tf.Operation:
    a = _state(w, "Adagrad", settings.initial_accumulator)
    return _ops.ResourceApplyAdagrad(var=w.handle, accum=a.handle, lr=lr, grad=g)


def _adam(settings: Any, w: tf.Variable, g: tf.Tensor, lr: tf.Tensor, count: tf.Tensor) -> tf.Operation:
    m, v, beta1, beta2 = _state(w, "Adam"), _state(w, "Adam_1"), settings.beta1, settings.beta2
    slots = dict(var=w.handle, m=m.handle, v=v.handle, beta1_power=beta1**count, beta2_power=beta2**count)
    return _ops.ResourceApplyAdam(**slots, lr=lr, beta1=beta1, beta2=beta2, epsilon=settings.epsilon, grad=g)


def _lamb(settings: Any, w: tf.Variable, g: tf.Tensor, lr: tf.Tensor, count: tf.Tensor) -> tf.Operation:
    m, v = _state(w, "LAMB"), _state(w, "LAMB_1")
    new_m = m + (1 - settings.beta1) * (g - m)
    new_v = v + (1 - settings.beta2) * (tf.square(g) - v)
    root = tf.sqrt(new_v / (1 - settings.beta2**count)) + settings.epsilon
    r = new_m / (1 - settings.beta1**count) / root
    if is_kernel(w):
        r += settings.weight_decay * w
    of_w, of_r = tf.norm(w), tf.norm(r)
    ratio = tf.where((of_w > 0) & (of_r > 0), tf.math.divide_no_nan(of_w, of_r), tf.ones_like(of_w))
    new_w = w - lr * ratio * r
    # No variable may change before all operations that read it have run.
    with tf.control_dependencies([new_m, new_v, new_w]):
        return tf.group(*(old.assign(new, read_value=False) for old, new in ((m, new_m), (v, new_v), (w, new_w))))


def _ftrl(settings: Any, w: tf.Variable, g: tf.Tensor, lr: tf.Tensor, count: tf.Tensor) -> tf.Operation:
    n, z = _ftrl_state(settings, w)
    slots, rates = dict(var=w.handle, accum=n.handle, linear=z.handle), dict(lr=lr, lr_power=-0.5)
    penalties = dict(l1=settings.ftrl_l1, l2=settings.ftrl_l2)
    return _ops.ResourceApplyFtrl(**slots, grad=g, **rates, **penalties, multiply_linear_by_lr=True)


def _ftrl_state(settings: Any, w: tf.Variable) -> tuple[tf.Variable, tf.Variable]:
    return _state(w, "Ftrl", settings.initial_accumulator), _state(w, "Ftrl_linear")


# By the optimizer's name: f(settings, variable, gradient, learning rate, count of steps) -> operation.
RULES: dict[str, Callable[..., tf.Operation]] = {
    "sgd": _sgd,
    "momentum": _momentum,
    "adagrad": _adagrad,
    "adam": _adam,
    "adamw": _adam,
    "lamb": _lamb,
    "ftrl": _ftrl,
}


class Plateau:
    """A learning-rate factor in the training graph, which evaluations without an improvement lower.

        factor = max(decay_rate ** falls, end)

    Attributes:
      patience: number of evaluations without an improvement, counted since the last improvement or the last fall, that
        cause a fall.
      factor: scalar float32 variable. It is not part of checkpoints, because it follows from the evaluations so far.
    """

    def __init__(self, decay_rate: float, end: float, patience: int) -> None:
        self.patience = patience
        self._decay_rate, self._end = decay_rate, end
        self.factor = tf1.get_variable(
            "plateau_factor", initializer=1.0, trainable=False, collections=[tf1.GraphKeys.LOCAL_VARIABLES]
        )
        self._fed = tf1.placeholder(tf.float32, [])
        self._assign = self.factor.assign(self._fed).op

    def set(self, session: tf1.Session, falls: int) -> float:
        """Sets the factor to its value after this number of falls, and returns it."""
        factor = max(self._decay_rate**falls, self._end)
        session.run(self._assign, {self._fed: factor})
        return factor


def cooldown_steps(steps: int, share: float) -> int:
    """Returns the number of steps in a share of a run's steps, at least 1."""
    return max(int(share * steps), 1)


def factor(
    schedule: Schedule, step: tf.Tensor | tf.Variable, run: RunLength, plateau: Plateau | None = None
) -> tf.Tensor:
    """Returns the factor of a learning rate at the global step `step`, a scalar float32.

    Raises UserError: the unit is an epoch, but the number of steps per epoch is not known.
    """
    unit, begins = _unit(schedule, run)
    found = tf.constant(1.0)
    if schedule.warmup_steps:
        done = tf.cast(step, tf.float32) + float(1.0 - begins)
        found = tf.minimum(1.0, done / (schedule.warmup_steps * unit))
    if schedule.name == "plateau":
        assert plateau is not None
        return found * plateau.factor
    if schedule.name == "piecewise":
        changes = [math.ceil(begins + boundary * unit - _ROUNDING) for boundary in schedule.boundaries]
        passed = [tf.cast(tf.cast(step, tf.int64) >= at, tf.int32) for at in changes]
        return found * tf.gather(schedule.factors, tf.add_n(passed))
    first, steps = span(schedule, run)
    if not steps:
        return found
    x = tf.maximum(tf.cast(step, tf.float64) - first, 0.0) / steps
    if schedule.name == "step":
        x = tf.floor(x + _ROUNDING)
    x = tf.cast(x, tf.float32)
    if schedule.name in ("exponential", "step"):
        return found * tf.maximum(schedule.decay_rate**x, schedule.end)
    x = tf.minimum(x, 1.0)
    left = (1.0 + tf.cos(math.pi * x)) / 2 if schedule.name == "cosine" else 1.0 - x
    return found * (schedule.end + (1.0 - schedule.end) * left)


def factors(schedule: Schedule, steps: Sequence[int], run: RunLength) -> list[float]:
    """Returns the factor at each of the steps, see `factor`."""
    with tf.Graph().as_default(), tf1.Session() as session:
        return list(map(float, session.run([factor(schedule, tf.constant(step), run) for step in steps])))


def span(schedule: Schedule, run: RunLength) -> tuple[float, float]:
    """Returns (global step at which the decay begins, number of its steps). Without a decay, the number is 0."""
    end = run.end()
    if schedule.name in ("constant", "piecewise", "plateau") or (end is None and schedule.depends_on_end):
        return run.begin, 0
    unit, begins = _unit(schedule, run)
    if schedule.name == "cooldown" and end is not None:
        steps = schedule.decay_steps * unit or cooldown_steps(end - run.begin, COOLDOWN_SHARE)
        return end - steps, steps
    warm = begins + schedule.warmup_steps * unit
    if end is None or schedule.decay_steps:
        return warm, schedule.decay_steps * unit
    first = max(run.begin, warm)
    return first, max(end - first, 1)


def _unit(schedule: Schedule, run: RunLength) -> tuple[float, float]:
    """Returns the schedule's unit in steps, and the global step from which the schedule counts."""
    if schedule.unit == "step":
        return 1.0, float(run.data_begin)
    if run.steps_per_epoch is None:
        raise UserError(
            "unit=epoch: the input does not say how many batches an epoch has, as a tf.data.Dataset: count in "
            "steps, unit=step"
        )
    return run.steps_per_epoch, run.first_epoch
