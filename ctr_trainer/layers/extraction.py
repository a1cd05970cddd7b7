"""One level of progressive layered extraction."""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from ctr_trainer.features.ranked import Columns
from ctr_trainer.layers.experts import experts, mixture


def extraction(
    inputs: Mapping[str, Columns | Sequence[Columns]],
    shared: Columns | Sequence[Columns],
    task_experts: int,
    shared_experts: int,
    network: Callable[..., tf.Tensor],
    last: bool = False,
) -> tuple[dict[str, tf.Tensor], tf.Tensor | None]:
    """Mixes, for each task, its own experts and the shared ones, and for the shared stream all experts.

        x_k' = sum_e softmax(x_k W_k)_e [E_k(x_k), E_s(x_s)]_e
        x_s' = sum_e softmax(x_s W_s)_e [E_1(x_1), ..., E_K(x_K), E_s(x_s)]_e

    Args:
      inputs: dict of task name -> x_k, a float32[B, n_i] or a list of them.
      shared: x_s, a float32[B, n_i] or a list of them.
      task_experts: number of experts of each task; at least one.
      shared_experts: number of shared experts; at least one.
      network: f(inputs, name=) -> float32[B, n], an expert with variables of its own.
      last: whether this is the last level, which needs no shared stream.

    Returns:
      (dict of task name -> x_k', float32[B, n]; x_s', float32[B, n], None at the last level).

    Advice: choose it over shared experts alone where tasks disagree, so that one gains what another loses.

    Example:
      >>> from ctr_trainer.layers.mlp import dense
      >>> def network(inputs, name):
      ...     return dense(inputs, 4, name)
      >>> x = tf.ones([2, 8])
      >>> tasks, shared = extraction({"click": x, "buy": x}, x, 1, 1, network)
      >>> tasks["buy"].shape, shared.shape
      (TensorShape([2, 4]), TensorShape([2, 4]))

    Source: Tang et al., Progressive Layered Extraction (PLE), RecSys 2020, section 4.2.
    """
    of_all = experts(shared, shared_experts, network, "shared_experts")
    # Scopes have numbers: a task's name may have characters that a scope's name must not have.
    of_task, outputs = [], {}
    for index, (name, x) in enumerate(inputs.items()):
        of_task.append(experts(x, task_experts, network, f"experts_{index}"))
        outputs[name] = mixture(x, of_task[index] + of_all, f"gate_{index}")
    if last:
        return outputs, None
    return outputs, mixture(shared, [*sum(of_task, []), *of_all], "shared_gate")
