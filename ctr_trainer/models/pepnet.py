"""PEPNet: gates by domain over the features, and gates by user and item over each hidden layer."""

import dataclasses

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.inputs import flat_inputs, named_embeddings
from ctr_trainer.models.layers.mlp import dense, gated
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import tower
from ctr_trainer.settings.setting import setting


@dataclasses.dataclass(frozen=True)
class Params(ModelParams):
    """The params of PEPNet."""

    domain: tuple[str, ...] = setting(
        (), "sparse features that name the domain, which the gate over the features reads"
    )
    personal: tuple[str, ...] = setting(
        (), "sparse features, such as user and item, which the gates over the hidden layers read"
    )
    gate_units: int = setting(64, "width of the gates' hidden layers", minimum=1)


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(w h_n + b)`, `h_l = g_l([prior, e]) * layer_l(h_{l-1})`, `h_0 = e = g_0([domain, x]) * x`.

    x is all features side by side, and each g a `layers.mlp.gated`, whose values are in (0, 2). The gates' contexts x
    and e get no gradient; domain and prior, the embeddings of the named features, do. Without names the gates read x
    and e alone.

    Advice: name the domain even with few domains: a gate costs little, and one model serves all of them.

    Source: Chang et al., PEPNet: Parameter and Embedding Personalized Network for Infusing with Personalized Prior
    Information, KDD 2023. The model predicts one label, where the paper's has a tower for each; the gates
    read the features' own embeddings, where the paper and FuxiCTR's PPNet have further ones.
    """
    x = tf.concat(flat_inputs(features), 1)
    domain = named_embeddings(features, params.domain, "pepnet")
    personal = named_embeddings(features, params.personal, "pepnet")
    embedded = gated(x, [*domain, tf.stop_gradient(x)], params.gate_units, "epnet")
    context = [*personal, tf.stop_gradient(embedded)]
    hidden = embedded
    for index, units in enumerate(params.hidden_units):
        layer = tower(hidden, mode, params, (units,), f"layer_{index}")
        hidden = gated(layer, context, params.gate_units, f"ppnet_{index}")
    return binary_head(features, labels, mode, params, dense(hidden, 1, "logits", bias=params.base_logit()))
