"""TabM: an ensemble of deep networks that share their matrices, trained and served as one model."""

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, LossOf, binary_head
from ctr_trainer.models.layers.inputs import flat_inputs
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.layers.weights import glorot, seed_of, zeros
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import dropped, logit_of_mean
from ctr_trainer.settings.setting import setting

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class Params(ModelParams):
    """The params of TabM."""

    members: int = setting(16, "networks in the ensemble", minimum=1)


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = mean_k sigmoid(w_k x_k + b_k)`, with x_k the member k of `batch_ensemble` over all features.

        loss = mean_k cross entropy(label, sigmoid(w_k x_k + b_k))

    Each member learns from its own prediction, so that the members stay different; only their mean is served.

    Advice: for data of few rows and many numbers, where trees are strong. The layers cost `members` times as much as
    those of a deep network of the same `hidden_units`. `batch_norm` has no effect.

    Source: Gorishniy et al., TabM: Advancing Tabular Deep Learning with Parameter-Efficient Ensembling, ICLR 2025,
    section 3, without its embeddings of numbers.
    """
    x = batch_ensemble(tf.concat(flat_inputs(features), 1), params.members, mode, params)
    bias = params.base_logit()
    streams = [dense(x[:, member], 1, f"logits_{member}", bias=bias) for member in range(params.members)]
    logits = logit_of_mean(streams)
    return binary_head(features, labels, mode, params, logits, mean_of_losses(logits, streams))


def batch_ensemble(inputs: tf.Tensor, members: int, mode: str, params: ModelParams) -> tf.Tensor:
    """Computes `members` multilayer perceptrons that share their matrices and differ only in vectors.

        x_k = activation(((x_k ∘ r_k) W) ∘ s_k + b_k),   one W for all members k

    `inputs` is x, float32[B, n], of all members; the result is float32[B, members, hidden_units[-1]]. The r_k of the
    first layer are random signs, so that the members have different inputs from the first step. All other vectors start
    at 1, and the biases at 0.

    Source: Wen et al., BatchEnsemble: An Alternative Approach to Efficient Ensemble and Lifelong Learning, ICLR 2020,
    section 3; with the initial values of TabM, section 3.3.
    """
    activate = getattr(tf.nn, params.activation)
    x = inputs[:, tf.newaxis, :]
    with tf1.variable_scope("ensemble"):
        for index, units in enumerate(params.hidden_units):
            width = x.shape.as_list()[2]
            with tf1.variable_scope(f"layer_{index}"):
                scale_in = _signs("scale_in", [members, width]) if index == 0 else _ones("scale_in", [members, width])
                kernel = glorot("kernel", [width, units], width, units)
                scale_out = _ones("scale_out", [members, units])
                bias = zeros("bias", [members, units], 1, 1)
            product = tf.reshape(tf.matmul(tf.reshape(x * scale_in, [-1, width]), kernel), [-1, members, units])
            x = dropped(activate(product * scale_out + bias), mode, params)
    return x


def mean_of_losses(logits: tf.Tensor, streams: Sequence[tf.Tensor]) -> Callable[[LossOf], tf.Tensor]:
    """Makes the extra loss `mean_k loss(z_k) - loss(z)`. Added to `loss(z)`, it gives the mean of the streams' losses.

    `logits` are z, float32[B, 1], the model's; `streams` are the z_k.
    """
    return lambda loss_of: tf.add_n([loss_of(z) for z in streams]) / len(streams) - loss_of(logits)


def _signs(name: str, shape: Sequence[int]) -> tf.Variable:
    """Creates a variable of random signs, -1 or 1, that depend only on the run's seed and the variable's full name."""
    uniform = tf1.random_uniform_initializer(-1.0, 1.0, seed=seed_of(name))
    return tf1.get_variable(name, initializer=lambda: tf.where(uniform(shape) < 0, -1.0, 1.0))


def _ones(name: str, shape: Sequence[int]) -> tf.Variable:
    return tf1.get_variable(name, shape, initializer=tf1.ones_initializer())
