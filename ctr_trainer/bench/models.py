"""Models for benchmarks only: a convolutional network, and any model of the package split into towers."""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ctr_trainer.bench.reference_networks import BLOCKS, SIDE
from ctr_trainer.features.tensors import Features, FedFeatures
from ctr_trainer.models.estimator_spec import EstimatorSpec, ModeKeys
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.inputs import field_embeddings
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.layers.weights import glorot
from ctr_trainer.models.params import ModelParams
from ctr_trainer.system.messages.errors import UserError

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class Params(ModelParams):
    """The hyperparameters of the convolutional network.

    Attributes:
      channels: number of channels of the first stage; the second stage has twice as many.
    """

    channels: int = 18

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "channels")


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """Predicts `p = sigmoid(w [mean(stage_2(stage_1(e))), x] + b)`, where the embeddings e are an image of F x dim.

    A stage has two ResNet blocks, `x + conv(relu(conv(x)))`, of 3 x 3 convolutions. The second stage has half the width
    and height, and twice as many channels. With W1's 26 x 16 points, each parameter is used in 160 multiplications per
    example, as in ResNet-50 with an image of 224 x 224: 4.1e9 multiplications with 25.6e6 parameters.

    The model ignores all params except `channels` and the params of the loss.

    Source: He et al., Deep Residual Learning for Image Recognition, CVPR 2016, section 3.
    """
    image = field_embeddings(features, "convolution")[..., None]
    image = tf.nn.relu(_convolution(image, params.channels, "stem"))
    image = _stage(image, "stage_0")
    image = tf.nn.relu(_convolution(image, 2 * params.channels, "halve", stride=2))
    image = _stage(image, "stage_1")
    inputs = [tf.reduce_mean(image, [1, 2])] + ([features["dense"]] if "dense" in features else [])
    return binary_head(features, labels, mode, params, dense(inputs, 1, "logits"))


def _stage(image: tf.Tensor, name: str) -> tf.Tensor:
    with tf1.variable_scope(name):
        for block in range(BLOCKS):
            inner = tf.nn.relu(_convolution(image, image.shape[3], f"block_{block}_0"))
            image = tf.nn.relu(image + _convolution(inner, image.shape[3], f"block_{block}_1"))
    return image


def _convolution(image: tf.Tensor, channels: int, name: str, stride: int = 1) -> tf.Tensor:
    """Maps float32[B, H, W, C] to float32[B, ceil(H / stride), ceil(W / stride), channels]."""
    inputs, area = image.shape[3], SIDE**2
    with tf1.variable_scope(name):
        kernel = glorot("kernel", [SIDE, SIDE, inputs, channels], area * inputs, area * channels)
        bias = tf1.get_variable("bias", [channels], initializer=tf1.zeros_initializer())
    return tf.nn.bias_add(tf.nn.conv2d(image, kernel, stride, "SAME"), bias)


def gpus_of(towers: int) -> int:
    """Returns the number of GPUs that a process uses: one for each tower, or none if the machine has fewer."""
    return towers if len(tf.config.list_physical_devices("GPU")) >= towers else 0


def in_towers(model_fn: Callable[..., EstimatorSpec], towers: int) -> Callable[..., EstimatorSpec]:
    """Returns a `model_fn` that trains the model in towers, which share their variables.

    Let W_i be the sum of the weights of part i's examples, and L_i its loss. The loss is sum_i W_i L_i / sum_i W_i, so
    that its gradient equals the gradient of the whole batch. On a machine with at least as many GPUs as towers, tower i
    is on GPU i; otherwise all towers are on the CPU, whose threads compute them concurrently. The model must be one of
    this package, with `ModelParams` as its params.

    Raises:
      UserError: the model normalizes over the batch, or the batch size is not divisible by the number of towers.
    """

    def trained_in_towers(features: FedFeatures, labels: Labels, mode: str, params: Any) -> EstimatorSpec:
        if mode != ModeKeys.TRAIN:
            return model_fn(features, labels, mode, params)
        if params.batch_norm:
            raise UserError("--batch_norm would normalize each tower over its own part of a batch: leave it out")
        assert features.batch_size is not None  # All batches of a training have the same size.
        size, rest = divmod(features.batch_size, towers)
        if rest:
            raise UserError(f"a batch of {features.batch_size} examples is not divisible by {towers} towers")
        on_gpus = gpus_of(towers) > 0
        specs, weights = [], []
        for number in range(towers):
            part = _Part(features, size, number)
            # The head passes the training loss to train_op_fn, which here returns it unchanged.
            own = dataclasses.replace(params, train_op_fn=lambda loss, _: loss)
            with (
                tf1.variable_scope(tf1.get_variable_scope(), reuse=number > 0),
                tf.device(f"/gpu:{number}" if on_gpus else "/cpu:0"),
            ):
                specs.append(model_fn(part, tf.nest.map_structure(part.cut, labels), mode, own))
                weights.append(tf.reduce_sum(part["weight"]))
        shares = [tf.math.divide_no_nan(weight, tf.add_n(weights)) for weight in weights]
        loss, trained = (
            tf.add_n([share * getattr(spec, name) for share, spec in zip(shares, specs, strict=True)])
            for name in ("loss", "train_op")
        )
        predictions = {name: tf.concat([spec.predictions[name] for spec in specs], 0) for name in specs[0].predictions}
        return EstimatorSpec(mode, predictions, loss, params.train_op_fn(trained, features))

    return trained_in_towers


class _Part(Features):
    """The features of part `number` of a batch, whose parts have `size` examples each."""

    def __init__(self, whole: FedFeatures, size: int, number: int) -> None:
        super().__init__(whole.spec, whole.statistics)
        self._whole, self.batch_size = whole, size
        self._rows = slice(number * size, (number + 1) * size)

    def cut(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns this part of a tensor [B, ...] of the whole batch."""
        return tensor[self._rows]

    def _make(self, name: str) -> tf.Tensor:
        return self.cut(self._whole[name])

    # These methods create tensors of the whole batch; `_make` does not call them.
    _raw_dense = _weight = _segment = _sequence = _mask = None  # type: ignore[assignment]
