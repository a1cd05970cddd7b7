"""DLRM: dot products of all embeddings and of the dense features' vector, under a deep network."""

import dataclasses

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.inputs import field_embeddings
from ctr_trainer.models.layers.interactions import pair_dots
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import tower
from ctr_trainer.settings.setting import setting


@dataclasses.dataclass(frozen=True)
class Params(ModelParams):
    """The params of DLRM."""

    bottom_units: tuple[int, ...] = setting(
        (64,),
        "widths of the layers between the dense features and their vector, which is as wide as an embedding",
        minimum=1,
        fewest=1,
    )


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`z = mlp_bottom(x)`, `p = sigmoid(mlp_top([z, <a, b> for all pairs of z, e_1, ..., e_F]))`.

    Advice: for many sparse features and some numbers, all embeddings of one dim.

    Source: Naumov et al., Deep Learning Recommendation Model for Personalization and Recommendation Systems, arXiv
    1906.00091, section 2.
    """
    if "dense" not in features:
        inputs = [pair_dots(field_embeddings(features, "dlrm", fields=2))]
    else:
        embeddings = field_embeddings(features, "dlrm")
        bottom = tower(features["dense"], mode, params, (*params.bottom_units, embeddings.shape.as_list()[2]), "bottom")
        inputs = [bottom, pair_dots(tf.concat([bottom[:, None, :], embeddings], 1))]
    top = tower(inputs, mode, params, name="top")
    return binary_head(features, labels, mode, params, dense(top, 1, "logits", bias=params.base_logit()))
