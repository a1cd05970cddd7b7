"""The optimizers of the dense variables."""

import tensorflow as tf

from ctr_trainer.settings.train_settings import LrGroups

tf1 = tf.compat.v1
_ops = tf.raw_ops


class DenseUpdate(tf1.train.Optimizer):
    """A `DenseOptimizer` at a learning rate, in the shape of TensorFlow's optimizers; with regularization.

    The gradients become + l2 * w, are then clipped, and then applied.

    Args:
      optimizer: `DenseOptimizer`.
      learning_rate: scalar tensor.
      step: scalar integer tensor, the optimizer steps before this one.
      l2: of the gradients of kernels, see `is_kernel`.
      clip_norm: the largest global norm of the gradients; 0 for any.
      lr_groups: `LrGroups`.
    """

    def __init__(self, optimizer, learning_rate, step, l2=0.0, clip_norm=0.0, lr_groups=LrGroups()):  # noqa: B008, frozen
        super().__init__(use_locking=False, name=optimizer.name)
        self._optimizer, self._learning_rate, self._step = optimizer, learning_rate, step
        self._l2, self._clip_norm, self._lr_groups = l2, clip_norm, lr_groups

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """Returns the operation of one update of each variable; the caller raises `global_step`.

        Args:
          grads_and_vars: pairs of dense gradients and resource variables.
        """
        gradients, variables = zip(*grads_and_vars, strict=True)
        with tf.name_scope(name or "dense_update"):
            if self._l2:
                gradients = [g + self._l2 * v if is_kernel(v) else g for g, v in grads_and_vars]
            if self._clip_norm:
                gradients, _ = tf.clip_by_global_norm(gradients, self._clip_norm)
            factors = self._lr_groups.factors_of(variables)
            rates = [self._learning_rate if factor == 1 else factor * self._learning_rate for factor in factors]
            steps = zip(variables, gradients, rates, strict=True)
            return tf.group(*(update(self._optimizer, v, g, rate, self._step) for v, g, rate in steps))


def update(optimizer, variable, gradient, learning_rate, step):
    """Returns the operation of one update.

    Args:
      optimizer: `DenseOptimizer`, whose class has the equation.
      variable: a resource variable.
      gradient: of its shape.
      learning_rate: scalar tensor.
      step: t, scalar integer tensor, read before this step raises it.
    """
    rule = RULES[optimizer.name]
    learning_rate = tf.cast(learning_rate, variable.dtype.base_dtype)
    count = tf.cast(step + 1, variable.dtype.base_dtype)
    decays = optimizer.weight_decay and is_kernel(variable) and rule is not _lamb
    with tf.control_dependencies([gradient]):  # So that what it comes from has read the variable.
        decay = _decay(optimizer, variable, learning_rate) if decays else []
    with tf.control_dependencies(decay):
        return rule(optimizer, variable, gradient, learning_rate, count)


def _decay(optimizer, w, lr):
    decay = lr * optimizer.weight_decay * w
    operations = [w.assign_sub(decay, read_value=False)]
    if optimizer.name == "ftrl":
        n, z = _ftrl_state(optimizer, w)
        operations.append(z.assign_add(decay * (tf.sqrt(n) + 2 * lr * optimizer.ftrl_l2), read_value=False))
    return operations


def is_kernel(variable):
    """Whether weight decay and L2 apply: to matrices and above, not to biases and the scales of a norm."""
    return variable.shape.rank >= 2


def _state(variable, name, value=0.0):
    """Returns the slot variable `name` of a variable, which starts at `value` everywhere."""
    name, initializer = f"{variable.op.name}/{name}", tf1.constant_initializer(value)
    with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
        return tf1.get_variable(name, variable.shape, variable.dtype.base_dtype, initializer, trainable=False)


def _sgd(_, w, g, lr, count):
    return _ops.ResourceApplyGradientDescent(var=w.handle, alpha=lr, delta=g)


def _momentum(settings, w, g, lr, count):
    m = _state(w, "Momentum")
    return _ops.ResourceApplyMomentum(var=w.handle, accum=m.handle, lr=lr, grad=g, momentum=settings.momentum)


def _adagrad(settings, w, g, lr, count):
    a = _state(w, "Adagrad", settings.initial_accumulator)
    return _ops.ResourceApplyAdagrad(var=w.handle, accum=a.handle, lr=lr, grad=g)


def _adam(settings, w, g, lr, count):
    return _ops.ResourceApplyAdam(
        var=w.handle,
        m=_state(w, "Adam").handle,
        v=_state(w, "Adam_1").handle,
        beta1_power=settings.beta1**count,
        beta2_power=settings.beta2**count,
        lr=lr,
        beta1=settings.beta1,
        beta2=settings.beta2,
        epsilon=settings.epsilon,
        grad=g,
    )


def _lamb(settings, w, g, lr, count):
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
    # No variable may change before all that reads it was computed.
    with tf.control_dependencies([new_m, new_v, new_w]):
        return tf.group(*(old.assign(new, read_value=False) for old, new in ((m, new_m), (v, new_v), (w, new_w))))


def _ftrl(settings, w, g, lr, count):
    n, z = _ftrl_state(settings, w)
    return _ops.ResourceApplyFtrl(
        var=w.handle,
        accum=n.handle,
        linear=z.handle,
        grad=g,
        lr=lr,
        l1=settings.ftrl_l1,
        l2=settings.ftrl_l2,
        lr_power=-0.5,
        multiply_linear_by_lr=True,
    )


def _ftrl_state(settings, w):
    return _state(w, "Ftrl", settings.initial_accumulator), _state(w, "Ftrl_linear")


RULES = {
    "sgd": _sgd,
    "momentum": _momentum,
    "adagrad": _adagrad,
    "adam": _adam,
    "adamw": _adam,
    "lamb": _lamb,
    "ftrl": _ftrl,
}
