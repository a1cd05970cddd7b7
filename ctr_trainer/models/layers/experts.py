"""Multi-task networks: experts, gates that mix their outputs, extraction levels, and a tower for each task."""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from ctr_trainer.features.ranked import Columns
from ctr_trainer.models.layers.mlp import dense

tf1 = tf.compat.v1


def experts(
    inputs: Columns | Sequence[Columns], count: int, network: Callable[..., tf.Tensor], name: str = "experts"
) -> list[tf.Tensor]:
    """Creates `count` networks of the same form over the same inputs.

    Args:
      inputs: float32[B, n_i], or a list of such tensors, which is treated as their concatenation.
      count: number of networks.
      network: f(inputs, name=) -> float32[B, n], an expert with variables of its own.
      name: name of the variable scope.

    Returns:
      list of float32[B, n].

    Advice: use more experts than tasks, each narrower than a single network would be.

    Example:
      >>> def network(inputs, name):
      ...     return dense(inputs, 4, name)
      >>> [expert.shape for expert in experts(tf.ones([2, 8]), 3, network)]
      [TensorShape([2, 4]), TensorShape([2, 4]), TensorShape([2, 4])]
    """
    with tf1.variable_scope(name):
        return [network(inputs, name=f"expert_{index}") for index in range(count)]


def mixture(selector: Columns | Sequence[Columns], outputs: Sequence[tf.Tensor], name: str = "gate") -> tf.Tensor:
    """Mixes the outputs of experts with a gate: `sum_e softmax(x W + b)_e f_e`.

    Args:
      selector: x, float32[B, n_i], or a list of such tensors, which is treated as their concatenation.
      outputs: f, a list of float32[B, n].
      name: name of the variable scope of the gate.

    Returns:
      float32[B, n].

    Advice: give each task its own gate, with its own name; a single gate would mix the experts alike for all tasks.

    Example:
      >>> mixture(tf.ones([2, 8]), [tf.ones([2, 4]), tf.zeros([2, 4])], name="gate_click").shape
      TensorShape([2, 4])

    Source: Ma et al., Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts, KDD 2018,
    section 4.2.
    """
    weights = tf.split(tf.nn.softmax(dense(selector, len(outputs), name)), len(outputs), 1)
    return tf.add_n([weight * output for weight, output in zip(weights, outputs, strict=True)])


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
      task_experts: number of experts of each task; at least one.
      shared_experts: number of shared experts; at least one.
      network: f(inputs, name=) -> float32[B, n], an expert with variables of its own.
      last: whether this is the last level, which has no shared output.

    Returns:
      (dict of task name -> x_k', float32[B, n]; x_s', float32[B, n], None at the last level).

    Advice: use it instead of shared experts alone if the tasks conflict, so that one improves at the cost of another.

    Example:
      >>> from ctr_trainer.models.layers.mlp import dense
      >>> def network(inputs, name):
      ...     return dense(inputs, 4, name)
      >>> x = tf.ones([2, 8])
      >>> tasks, shared = extraction({"click": x, "buy": x}, x, 1, 1, network)
      >>> tasks["buy"].shape, shared.shape
      (TensorShape([2, 4]), TensorShape([2, 4]))

    Source: Tang et al., Progressive Layered Extraction (PLE), RecSys 2020, section 4.2.
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


def towers(
    inputs: Mapping[str, Columns | Sequence[Columns]],
    network: Callable[..., tf.Tensor] | None = None,
    biases: Mapping[str, float] | None = None,
) -> dict[str, tf.Tensor]:
    """Creates a network and a logit for each task.

    Args:
      inputs: dict of task name -> float32[B, n_i], or a list of such tensors, which is treated as their concatenation.
      network: f(inputs) -> float32[B, n] with variables of its own; None to compute the logit directly from the inputs.
      biases: dict of task name -> initial bias of its logit; 0 for other tasks.

    Returns:
      dict of task name -> logits, float32[B, 1].

    Advice: use small towers of one hidden layer; layers that the tasks share belong below them.

    Example:
      >>> logits = towers({"click": tf.ones([2, 8]), "buy": tf.ones([2, 8])})
      >>> logits["buy"].shape
      TensorShape([2, 1])
    """
    logits = {}
    for index, (name, x) in enumerate(inputs.items()):
        # Scopes are numbered, because the name of a task may have characters that a scope name must not have.
        with tf1.variable_scope(f"tower_{index}"):
            logits[name] = dense(network(x) if network else x, 1, "logits", bias=(biases or {}).get(name, 0.0))
    return logits
