"""Wide & Deep: a linear model next to a deep network."""

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.inputs import flat_inputs
from ctr_trainer.models.layers.linear import linear
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import tower


def model_fn(features: Features, labels: Labels, mode: str, params: ModelParams) -> EstimatorSpec:
    """`p = sigmoid(linear + mlp([e_1, ..., e_F, x]))`.

    Advice: the one to take if the embeddings have several dims.

    Source: Cheng et al., Wide & Deep Learning for Recommender Systems, DLRS 2016, section 3.
    """
    deep = dense(tower(flat_inputs(features), mode, params), 1, "logits")
    return binary_head(features, labels, mode, params, linear(features, bias=params.base_logit()) + deep)
