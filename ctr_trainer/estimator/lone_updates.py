"""Follows the flow of a training graph: what of a step depends on this worker's examples alone, and how."""

import re
from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

tf1 = tf.compat.v1
_UPDATE = re.compile(r"(Resource)?(Sparse)?Apply|Assign|(Resource)?Scatter")
# Their results are equal on all workers.
_EXCHANGE = re.compile(r"Horovod(Grouped)?(Allreduce|Allgather)|HorovodBroadcast")
# Their results differ from worker to worker: examples, what is fed, and numbers of ranks. Random operations have the
# seed of `RunConfig`, so they give all workers the same.
_OWN = re.compile(
    r"IteratorGetNext|Placeholder(V2)?$|(Eager)?PyFunc|QueueDequeue|Reader|ReadFile|Horovod(Local|Cross)?Rank"
    r"|HorovodAlltoall|HorovodReducescatter"
)
# What a loss is behind which a sum is still a sum.
_HANDED_ON = ("Add", "AddV2", "AddN", "Sub", "Neg", "Mul", "Identity", "Cast", "Reshape", "Squeeze", "ExpandDims")
_VARIABLE = ("VarHandleOp", "VariableV2")
_HOST_SUM = "host_sum."


def lone_updates(train_op: tf.Operation | tf.Tensor, variables: Sequence[tf1.Variable]) -> list[tf1.Variable]:
    """Returns the variables whose update depends on this worker's examples other than through an exchange.

    It follows each update of a variable against the flow of the graph. An exchange, such as Horovod's allreduce or
    `HostSum`, ends the way, since its result is equal on all workers. A way that ends at the examples makes the
    variable differ from worker to worker. A call of a function counts as an exchange if there is one within
    the function, and a condition if there is one in a branch.

    Args:
      train_op: the operation of a training step.
      variables: those to look at.
    """
    graph = _Graph(getattr(train_op, "op", train_op))
    return [variable for variable in variables if graph.is_own(graph.updates(variable.op))]


def summed_over_examples(loss: tf.Tensor) -> str:
    """Returns the name of the operation by which a loss is a sum over the examples of a batch; "" if none is seen.

    It looks behind additions and products of the loss, as far as the first mean, division or sum. A sum that is
    multiplied by a constant counts as one, a sum that is divided by anything does not.

    Args:
      loss: scalar.
    """
    graph, seen, queue = _Graph(loss.op), set(), [loss.op]
    while queue:
        op = queue.pop()
        if op in seen:
            continue
        seen.add(op)
        if op.type == "Sum" and _reduces_first_axis(op) and graph.is_own([op]):
            return op.name
        if op.type in _HANDED_ON:
            queue += [tensor.op for tensor in op.inputs]
    return ""


def _reduces_first_axis(op: tf.Operation) -> bool:
    axes, rank = tf.get_static_value(op.inputs[1]), op.inputs[0].shape.rank
    return axes is not None and rank is not None and rank > 0 and 0 in [axis % rank for axis in axes.reshape(-1)]


class _Graph:
    """The operations that a `train_op` runs."""

    def __init__(self, train_op: tf.Operation) -> None:
        library = train_op.graph.as_graph_def().library.function
        self._bodies = {function.signature.name: list(function.node_def) for function in library}
        self._run: set[tf.Operation] = set()
        queue = [train_op]
        while queue:
            op = queue.pop()
            if op not in self._run:
                self._run.add(op)
                queue += [*(tensor.op for tensor in op.inputs), *op.control_inputs]

    def updates(self, variable: tf.Operation) -> list[tf.Operation]:
        """Returns the operations of the `train_op` that update a variable, given its own operation."""
        found, seen, queue = [], set(), list(variable.outputs)
        while queue:
            tensor = queue.pop()
            for op in tensor.consumers():
                if op in seen or op not in self._run:
                    continue
                seen.add(op)
                if _UPDATE.match(op.type) or any(_UPDATE.match(node.op) for node in self._called(op.node_def)):
                    found.append(op)
                # The handle or the reference, handed on.
                queue += [out for out in op.outputs if out.dtype == tf.resource or out.dtype != out.dtype.base_dtype]
        return found

    def is_own(self, updates: Iterable[tf.Operation]) -> bool:
        """Returns whether one of these operations takes in what differs from worker to worker."""
        taken = []
        for op in updates:
            if not any(_is_exchange(node.op, node.name) for node in self._called(op.node_def)):
                taken += [tensor.op for tensor in op.inputs]
        return self._reaches_own(taken, set(updates))

    def _reaches_own(self, queue: list[tf.Operation], seen: set[tf.Operation]) -> bool:
        """Returns whether a way against the flow ends at what differs from worker to worker.

        Args:
          queue: where the ways begin.
          seen: operations that ways have been through.
        """
        while queue:
            op = queue.pop()
            if op in seen or _is_exchange(op.type, op.name):
                continue
            seen.add(op)
            if _OWN.match(op.type):
                return True
            called = self._called(op.node_def)
            if any(_is_exchange(node.op, node.name) for node in called):
                continue
            if any(_OWN.match(node.op) for node in called):
                return True
            branches = [tensor.op for tensor in op.inputs]
            if op.type == "Merge" and not any(branch.type == "NextIteration" for branch in branches):
                # A condition of TensorFlow 1. Horovod exchanges in one branch, and a lone worker takes the other.
                if all(self._reaches_own([branch], set(seen)) for branch in branches):
                    return True
                continue
            if op.type in _VARIABLE and not _is_trainable(op):
                queue += self.updates(op)  # Such as a sum of the gradients of several steps.
            queue += branches
        return False

    def _called(self, node: tf1.NodeDef) -> list[tf1.NodeDef]:
        """Returns the nodes of the functions that a node calls, and of those that these call."""
        found, names, known = [], _functions(node), set()
        while names:
            name = names.pop()
            if name not in known:
                known.add(name)
                body = self._bodies.get(name, [])
                found += body
                names += [each for inner in body for each in _functions(inner)]
        return found


def _is_exchange(kind: str, name: str) -> bool:
    return bool(_EXCHANGE.match(kind)) or ("PyFunc" in kind and _HOST_SUM in name)


def _is_trainable(op: tf.Operation) -> bool:
    """Returns whether an operation is of a trainable variable, which is looked at by itself."""
    return any(variable.op is op for variable in tf1.trainable_variables())


def _functions(node: tf1.NodeDef) -> list[str]:
    """Returns the names of the functions that a node calls."""
    values: Mapping[str, tf1.AttrValue] = node.attr
    names = [name for value in values.values() for name in (value.func.name, *(f.name for f in value.list.func))]
    return [name for name in names if name]
