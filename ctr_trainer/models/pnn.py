"""PNN: the dot products of all pairs of embeddings under a deep network (IPNN)."""

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.inputs import field_embeddings, flat_inputs
from ctr_trainer.models.layers.interactions import pair_dots
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import tower


def model_fn(features: Features, labels: Labels, mode: str, params: ModelParams) -> EstimatorSpec:
    """`p = sigmoid(mlp([e_1, ..., e_F, x, <e_i, e_j> for all pairs i < j]))`.

    Advice: give it embeddings of one dim; DLRM has the same products, without the embeddings next to them.

    Source: Qu et al., Product-based Neural Networks for User Response Prediction, ICDM 2016, section 3.2; the variant
    with inner products.
    """
    products = pair_dots(field_embeddings(features, "pnn", fields=2))
    deep = tower([*flat_inputs(features), products], mode, params)
    return binary_head(features, labels, mode, params, dense(deep, 1, "logits", bias=params.base_logit()))
