"""Shared bottom: one network for all tasks, and a tower for each."""

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, multi_head
from ctr_trainer.models.layers.inputs import flat_inputs
from ctr_trainer.models.shared import TaskParams as Params
from ctr_trainer.models.shared import task_logits, task_names, tower

__all__ = ["Params", "model_fn"]


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p_t = sigmoid(tower_t(mlp([e_1, ..., e_F, x])))`.

    Advice: the baseline of the models of several labels, and the fastest of them.

    Source: Caruana, Multitask Learning, Machine Learning 28, 1997, section 1.
    """
    bottom = tower(flat_inputs(features), mode, params)
    inputs = dict.fromkeys(task_names(features, labels, "shared_bottom"), bottom)
    return multi_head(features, labels, mode, params, task_logits(inputs, mode, params))
