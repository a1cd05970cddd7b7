"""The optimizers of the dense variables."""

import dataclasses
import math

import tensorflow as tf

from ctr_trainer.estimator.lr_groups import LrGroups
from ctr_trainer.messages.errors import UserError

tf1 = tf.compat.v1
_ops = tf.raw_ops


@dataclasses.dataclass(frozen=True)
class DenseOptimizer:
    """One update of a variable w by its gradient g at the learning rate lr, t optimizer steps after the first.

        sgd:       w -= lr g
        momentum:  m = momentum m + g;  w -= lr m
        adagrad:   a += g^2;  w -= lr g / sqrt(a), a starting at `initial_accumulator`
        adam:      m += (1 - beta1)(g - m);  v += (1 - beta2)(g^2 - v);
                   w -= lr sqrt(1 - beta2^(t+1)) / (1 - beta1^(t+1)) m / (sqrt(v) + epsilon)
        adamw:     as adam, with a `weight_decay` by default
        lamb:      m, v as adam;  r = m / (1 - beta1^(t+1)) / (sqrt(v / (1 - beta2^(t+1))) + epsilon) + weight_decay w;
                   w -= lr |w| / |r| r, with 1 in place of |w| / |r| where either is 0
        ftrl:      s = sqrt(n + g^2) - sqrt(n);  z += lr g - s w;  n += g^2, n starting at `initial_accumulator`;
                   w = -(z - sign(z) lr ftrl_l1) / (sqrt(n) + 2 lr ftrl_l2) where |z| > lr ftrl_l1, else 0

    The paper's z of FTRL is that one over lr: at a rate that stays both make the same steps, but with the paper's a
    rate that falls would take all weights along, to 0 at its end.

    With `weight_decay`, all but LAMB, which has it in r, first do w -= lr weight_decay w; FTRL does so in w and in the
    z that w comes from, z += lr weight_decay w (sqrt(n) + 2 lr ftrl_l2). It is of kernels only, see `is_kernel`. The
    state is named as `tf.compat.v1` optimizers named it, but for FTRL's z, which is another.

    Attributes:
      name: of `OPTIMIZERS`.
      weight_decay: as above, the share of a kernel that a step takes off, times lr; None for 0.01 of adamw and lamb,
        and 0 of the others.
      momentum, initial_accumulator, beta1, beta2, epsilon, ftrl_l1, ftrl_l2: as above. One that the optimizer does not
        use must be left as it is.

    Raises:
      UserError: a setting out of its range, or one that the optimizer does not use.

    Source: Duchi et al., Adaptive Subgradient Methods, JMLR 2011 (Adagrad); Kingma and Ba, Adam, ICLR 2015, end of
    section 2; Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019, algorithm 2 (AdamW, whose decay
    is multiplied by lr as in Keras and PyTorch); You et al., Large Batch Optimization for Deep Learning, ICLR 2020,
    algorithm 2 (LAMB); McMahan et al., Ad Click Prediction, KDD 2013, algorithm 1 (FTRL).
    """

    name: str = "adagrad"
    momentum: float = 0.9
    initial_accumulator: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float | None = None
    ftrl_l1: float = 0.0
    ftrl_l2: float = 0.0

    def __post_init__(self):
        if self.name not in OPTIMIZERS:
            raise UserError(f"--optimizer={self.name}: choose one of {', '.join(OPTIMIZERS)}")
        _, used = OPTIMIZERS[self.name]
        for field in dataclasses.fields(self):
            if field.name not in ("name", "weight_decay", *used) and getattr(self, field.name) != field.default:
                raise UserError(
                    f"--optimizer={self.name} has no {field.name}, which is set to {getattr(self, field.name):g}; "
                    f"it has {', '.join((*used, 'weight_decay'))}"
                )
        for name in ("momentum", "beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{name} of --optimizer={self.name} must be at least 0 and below 1")
        if self.weight_decay is None:
            object.__setattr__(self, "weight_decay", _WEIGHT_DECAY.get(self.name, 0.0))
        if not 0 <= self.weight_decay < math.inf:
            raise UserError(f"--weight_decay={self.weight_decay:g} must be at least 0")
        if self.initial_accumulator <= 0:
            raise UserError(f"the initial accumulator of --optimizer={self.name} must be above 0")

    def update(self, variable, gradient, learning_rate, step):
        """-> operation of one update.

        Args:
          variable: a resource variable.
          gradient: of its shape.
          learning_rate: scalar tensor.
          step: t, scalar integer tensor, read before this step raises it.
        """
        rule, _ = OPTIMIZERS[self.name]
        learning_rate = tf.cast(learning_rate, variable.dtype.base_dtype)
        count = tf.cast(step + 1, variable.dtype.base_dtype)
        decays = self.weight_decay and is_kernel(variable) and rule is not _lamb
        with tf.control_dependencies([gradient]):  # So that what it comes from has read the variable.
            decay = self._decay(variable, learning_rate) if decays else []
        with tf.control_dependencies(decay):
            return rule(self, variable, gradient, learning_rate, count)

    def _decay(self, w, lr):
        decay = lr * self.weight_decay * w
        operations = [w.assign_sub(decay, read_value=False)]
        if self.name == "ftrl":
            n, z = _ftrl_state(self, w)
            operations.append(z.assign_add(decay * (tf.sqrt(n) + 2 * lr * self.ftrl_l2), read_value=False))
        return operations


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
        """-> operation of one update of each variable; of `global_step`, which is the caller's to raise, it makes none.

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
            return tf.group(*(self._optimizer.update(v, g, rate, self._step) for v, g, rate in steps))


def is_kernel(variable):
    """Whether weight decay and L2 apply: to matrices and above, not to biases and the scales of a norm."""
    return variable.shape.rank >= 2


def _state(variable, name, value=0.0):
    """-> the slot variable `name` of a variable, which starts at `value` everywhere."""
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


_WEIGHT_DECAY = {"adamw": 0.01, "lamb": 0.01}
_MOMENTS = ("beta1", "beta2", "epsilon")
OPTIMIZERS = {
    "sgd": (_sgd, ()),
    "momentum": (_momentum, ("momentum",)),
    "adagrad": (_adagrad, ("initial_accumulator",)),
    "adam": (_adam, _MOMENTS),
    "adamw": (_adam, _MOMENTS),
    "lamb": (_lamb, _MOMENTS),
    "ftrl": (_ftrl, ("initial_accumulator", "ftrl_l1", "ftrl_l2")),
}
