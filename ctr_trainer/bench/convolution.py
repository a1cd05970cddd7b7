"""A small residual convolutional network, for a benchmark that computes much with each parameter that it exchanges."""

import dataclasses

import tensorflow as tf

from ctr_trainer.bench.reference_networks import BLOCKS, SIDE
from ctr_trainer.features.tensors import Features
from ctr_trainer.graph_notes.estimator_spec import EstimatorSpec
from ctr_trainer.layers.inputs import field_embeddings
from ctr_trainer.layers.mlp import dense
from ctr_trainer.layers.weights import glorot
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.params import ModelParams

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
    and height, and twice as many channels. With W1's 26 x 16 points, each parameter takes part in 160 multiplications
    for each example, as in ResNet-50 with an image of 224 x 224: 4.1e9 multiplications with 25.6e6 parameters.

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
