"""DeepFM: a factorization machine and a deep network over the same embeddings."""

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.inputs import flat_inputs
from ctr_trainer.models.layers.interactions import fm_of_fields
from ctr_trainer.models.layers.linear import linear
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import tower


def model_fn(features: Features, labels: Labels, mode: str, params: ModelParams) -> EstimatorSpec:
    """`p = sigmoid(linear + fm(e) + mlp([e_1, ..., e_F, x]))`.

    Advice: a good first model: it needs embeddings of one dim and no params.

    Source: Guo et al., DeepFM: A Factorization-Machine based Neural Network for CTR Prediction, IJCAI 2017, section 2.
    """
    deep = tower(flat_inputs(features), mode, params)
    wide = linear(features, bias=params.base_logit()) + fm_of_fields(features, "deepfm")
    return binary_head(features, labels, mode, params, wide + dense(deep, 1, "logits"))
