"""PLE: levels of experts; in each level every task has its own experts, and all tasks share some."""

import dataclasses
import functools

import tensorflow as tf

from ctr_trainer.features.ranked import Columns
from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, multi_head
from ctr_trainer.models.layers.experts import extraction
from ctr_trainer.models.layers.inputs import flat_inputs
from ctr_trainer.models.shared import TaskParams, task_logits, task_names, tower

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class Params(TaskParams):
    """The params of PLE; `hidden_units` are the widths of an expert.

    Attributes:
      task_experts: number of experts per task and level.
      shared_experts: number of shared experts per level.
      levels: number of levels of experts.
    """

    task_experts: int = 2
    shared_experts: int = 2
    levels: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "task_experts", "shared_experts", "levels")


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p_t = sigmoid(tower_t(x_t))`, with x_t the output of the last level of `layers.experts.extraction` for task t.

    Advice: for tasks that disagree; begin with two levels.

    Example:
      >>> spec = model_fn(features, None, "infer", Params(task_experts=1, shared_experts=1))
      >>> spec.predictions["probabilities/buy"].shape
      TensorShape([32])

    Source: Tang et al., Progressive Layered Extraction (PLE): A Novel Multi-Task Learning Model for Personalized
    Recommendations, RecSys 2020, section 4.
    """
    shared: Columns | list[Columns] | None = flat_inputs(features)
    inputs = dict.fromkeys(task_names(features, labels, "ple"), shared)
    network = functools.partial(tower, mode=mode, params=params)
    for level in range(params.levels):
        with tf1.variable_scope(f"level_{level}"):
            last = level == params.levels - 1
            inputs, shared = extraction(inputs, shared, params.task_experts, params.shared_experts, network, last)
    return multi_head(features, labels, mode, params, task_logits(inputs, mode, params))
