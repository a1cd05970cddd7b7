"""One level of progressive layered extraction."""

from ctr_trainer.layers.experts import experts, mixture


def extraction(inputs, shared, task_experts, shared_experts, network, last=False):
    """Each task mixes its own experts with the shared ones; the shared stream mixes all.

        x_k' = sum_e softmax(x_k W_k)_e [E_k(x_k), E_s(x_s)]_e
        x_s' = sum_e softmax(x_s W_s)_e [E_1(x_1), ..., E_K(x_K), E_s(x_s)]_e

    Args:
      inputs: by task name, x_k: a float32[B, n_i] or a list of them.
      shared: x_s, likewise.
      task_experts, shared_experts: how many of each task, and how many shared; at least one each.
      network: f(inputs, name=) -> float32[B, n], an expert with variables of its own.
      last: this is the last level, of which nobody reads the shared stream.

    Returns:
      ({name: float32[B, n]}, float32[B, n] or None).

    Source: Tang et al., Progressive Layered Extraction (PLE), RecSys 2020, section 4.2.
    """
    of_all = experts(shared, shared_experts, network, "shared_experts")
    # Scopes by number: a task's name may hold what a scope's must not.
    of_task, outputs = [], {}
    for index, (name, x) in enumerate(inputs.items()):
        of_task.append(experts(x, task_experts, network, f"experts_{index}"))
        outputs[name] = mixture(x, of_task[index] + of_all, f"gate_{index}")
    if last:
        return outputs, None
    return outputs, mixture(shared, [*sum(of_task, []), *of_all], "shared_gate")
