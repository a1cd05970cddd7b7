"""PLE: levels of experts; in each level every task has its own experts, and all tasks share some."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from ctr_trainer.features.ranked import Columns
from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, multi_head
from ctr_trainer.models.layers.experts import experts, mixture
from ctr_trainer.models.layers.inputs import flat_inputs
from ctr_trainer.models.shared import TaskParams, task_logits, task_names, tower
from ctr_trainer.settings.setting import setting

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class Params(TaskParams):
    """The params of PLE; `hidden_units` are the widths of an expert."""

    task_experts: int = setting(2, "experts per task and level", minimum=1)
    shared_experts: int = setting(2, "shared experts per level", minimum=1)
    levels: int = setting(2, "levels of experts", minimum=1)


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p_t = sigmoid(tower_t(x_t))`, with x_t the output of the last level of `extraction` for task t.

    Advice: for tasks that disagree; begin with two levels.

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


def extraction(
    inputs: Mapping[str, Columns | Sequence[Columns]],
    shared: Columns | Sequence[Columns],
    task_experts: int,
    shared_experts: int,
    network: Callable[..., tf.Tensor],
    last: bool = False,
) -> tuple[dict[str, tf.Tensor], tf.Tensor | None]:
    """Mixes each task's own experts with the shared experts, and all experts for the shared stream.

        x_k' = sum_e softmax(x_k W_k)_e [E_k(x_k), E_s(x_s)]_e
        x_s' = sum_e softmax(x_s W_s)_e [E_1(x_1), ..., E_K(x_K), E_s(x_s)]_e

    Args:
      inputs: dict of task name -> x_k, float32[B, n_i] or a list of such tensors.
      shared: x_s, float32[B, n_i] or a list of such tensors.
      task_experts, shared_experts: numbers of experts of each task and of shared experts; at least one.
      network: f(inputs, name=) -> float32[B, n], an expert with variables of its own.
      last: whether this is the last level, which has no shared output.

    Returns:
      (dict of task name -> x_k', float32[B, n]; x_s', float32[B, n], None at the last level).
    """
    of_all = experts(shared, shared_experts, network, "shared_experts")
    # Scopes are numbered, because the name of a task may have characters that a scope name must not have.
    of_task, outputs = [], {}
    for index, (name, x) in enumerate(inputs.items()):
        of_task.append(experts(x, task_experts, network, f"experts_{index}"))
        outputs[name] = mixture(x, of_task[index] + of_all, f"gate_{index}")
    if last:
        return outputs, None
    return outputs, mixture(shared, [*sum(of_task, []), *of_all], "shared_gate")
