"""AutoInt: layers of self-attention between the fields, next to a deep network."""

import dataclasses

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.inputs import all_field_embeddings, flat, flat_inputs
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.layers.weights import glorot
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import tower
from ctr_trainer.settings.setting import setting


@dataclasses.dataclass(frozen=True)
class Params(ModelParams):
    """The params of AutoInt."""

    attention_layers: int = setting(3, "attention layers; each adds one to the degree of the interactions", minimum=1)
    heads: int = setting(2, "attentions side by side in a layer", minimum=1)
    head_dim: int = setting(16, "width of each attention's queries, keys and values", minimum=1)
    deep: bool = setting(True, "whether there is a deep network next to the attention, as in the paper's AutoInt+")


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(w [attention(e), mlp([e_1, ..., e_F, x])] + b)`; e has a vector for each dense feature too.

    Advice: its time grows with the square of the fields, so leave `deep` on and the layers few.

    Source: Song et al., AutoInt: Automatic Feature Interaction Learning via Self-Attentive Neural Networks, CIKM 2019,
    sections 4 and 5.5.
    """
    fields = all_field_embeddings(features, "autoint")
    for index in range(params.attention_layers):
        fields = interacting(fields, params.heads, params.head_dim, f"attention_{index}")
    last = [flat(fields)]
    if params.deep:
        last.append(tower(flat_inputs(features), mode, params))
    return binary_head(features, labels, mode, params, dense(last, 1, "logits", bias=params.base_logit()))


def interacting(fields: tf.Tensor, heads: int, head_dim: int, name: str) -> tf.Tensor:
    """Replaces each field's vector by a mix of all fields' vectors, weighted by similarity, plus a residual.

        a_hmk = softmax_k <Q_h e_m, K_h e_k>,    e'_m = relu(concat_h(sum_k a_hmk V_h e_k) + W_res e_m)

    `fields` is e, float32[B, F, n]; the result is float32[B, F, heads * head_dim].

    Source: equations 5 to 8.
    """
    _, count, width = fields.shape.as_list()
    units = heads * head_dim
    flat = tf.reshape(fields, [-1, width])

    def projected(kernel: str) -> tf.Tensor:
        return tf.reshape(tf.matmul(flat, glorot(kernel, [width, units], width, units)), [-1, count, heads, head_dim])

    with tf.compat.v1.variable_scope(name):
        queries, keys, values = (tf.transpose(projected(which), [0, 2, 1, 3]) for which in ("query", "key", "value"))
        weights = tf.nn.softmax(tf.matmul(queries, keys, transpose_b=True))
        mixed = tf.transpose(tf.matmul(weights, values), [0, 2, 1, 3])
        return tf.nn.relu(tf.reshape(mixed + projected("residual"), [-1, count, units]))
