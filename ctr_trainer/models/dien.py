"""DIEN: recurrent networks follow how interests develop, weighted by the target."""

import dataclasses

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.gru import Packed, gru, next_behaviour_loss
from ctr_trainer.models.layers.inputs import flat_inputs
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.params import HistoryParams
from ctr_trainer.models.shared import histories, tower
from ctr_trainer.settings.setting import setting

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class Params(HistoryParams):
    """The params of DIEN."""

    auxiliary_weight: float = setting(
        0.5, "weight of the loss that teaches each interest state to tell the next behaviour; 0 for none", minimum=0.0
    )


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(mlp([e_1, ..., e_F, x, v_1, ..., v_S]))`, with v_s the last state of an AUGRU over a GRU's states.

        i_t = gru(h)_t,   a_t = softmax_t(i_t W target),   v = augru(i, a)_L
        loss = cross entropy + auxiliary_weight * mean_s next_behaviour_loss(i, h)

    The states are as wide as the embeddings, since the auxiliary loss compares the two. The behaviours that did not
    happen are taken from other examples of the batch, not of a sampled history.

    Advice: it takes several times as long as DIN; try it where interests drift within a history.

    Source: Zhou et al., Deep Interest Evolution Network for Click-Through Rate Prediction, AAAI 2019, section 3.
    """
    interests, auxiliary = [], []
    for index, history in enumerate(histories(features, params, "dien")):
        with tf1.variable_scope(f"history_{index}"):
            units = history.values.shape.as_list()[-1]
            packed = Packed.of(history.mask)
            behaviours = packed.pack(history.values)
            states = gru(behaviours, packed, units, name="extraction")
            towards = dense(history.target, units, "attention")
            scores = tf.reduce_sum(states * tf.gather(towards, packed.examples), 1)
            attention = packed.softmax(scores)[:, None]
            evolved = gru(states, packed, units, attention, name="evolution")
            interests.append(packed.last(evolved))
        if labels is not None and params.auxiliary_weight:
            auxiliary.append(next_behaviour_loss(states, behaviours, packed, features["weight"]))
    logits = dense(tower(flat_inputs(features) + interests, mode, params), 1, "logits", bias=params.base_logit())
    extra = params.auxiliary_weight * tf.add_n(auxiliary) / len(auxiliary) if auxiliary else None
    return binary_head(features, labels, mode, params, logits, extra)
