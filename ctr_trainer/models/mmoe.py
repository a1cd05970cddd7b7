"""MMoE: experts that all tasks share, and a gate of each task's own."""

import dataclasses
import functools

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, multi_head
from ctr_trainer.models.layers.experts import experts, mixture
from ctr_trainer.models.layers.inputs import flat_inputs
from ctr_trainer.models.shared import TaskParams, task_logits, task_names, tower
from ctr_trainer.settings.setting import setting


@dataclasses.dataclass(frozen=True)
class Params(TaskParams):
    """The params of MMoE; `hidden_units` are the widths of an expert."""

    experts: int = setting(4, "number of experts", minimum=1)


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p_t = sigmoid(tower_t(sum_e softmax(x W_t)_e expert_e(x)))`, with x the embeddings and the dense features.

    Advice: for tasks that share most of what they need; try PLE if one task gets worse together with the others.

    Source: Ma et al., Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts, KDD 2018,
    section 4.2.
    """
    x = flat_inputs(features)
    outputs = experts(x, params.experts, functools.partial(tower, mode=mode, params=params))
    names = task_names(features, labels, "mmoe")
    inputs = {name: mixture(x, outputs, f"gate_{index}") for index, name in enumerate(names)}
    return multi_head(features, labels, mode, params, task_logits(inputs, mode, params))
