"""Checks that all workers train one model: from the graph before training, from the values while training runs."""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.ranks import distributed
from ctr_trainer.system.messages.errors import UserError

_UPDATE = re.compile(r"(Resource)?(Sparse)?Apply|Assign|(Resource)?Scatter")
# Operations whose results are equal on all workers.
_EXCHANGE = re.compile(r"Horovod(Grouped)?(Allreduce|Allgather)|HorovodBroadcast")
# Operations whose results differ between workers: inputs, fed values and ranks. Random operations are not listed,
# because all workers use the seed of `RunConfig`.
_OWN = re.compile(
    r"IteratorGetNext|Placeholder(V2)?$|(Eager)?PyFunc|QueueDequeue|Reader|ReadFile|Horovod(Local|Cross)?Rank"
    r"|HorovodAlltoall|HorovodReducescatter"
)
# Operations whose result counts as a sum over the examples if one of their inputs is such a sum.
_KEEP_SUMS = ("Add", "AddV2", "AddN", "Sub", "Neg", "Mul", "Identity", "Cast", "Reshape", "Squeeze", "ExpandDims")
_VARIABLE = ("VarHandleOp", "VariableV2")
_HOST_SUM = "host_sum."
_log = logging.getLogger(__name__)
# Largest allowed difference of a variable between ranks, relative to its largest value. Types of processors round
# differently.
_ROUNDING = 1e-4
_NAMED = 5


def lone_updates(train_op: tf.Operation | tf.Tensor, variables: Sequence[tf1.Variable]) -> list[tf1.Variable]:
    """Returns the variables whose update depends on this worker's examples other than through an exchange.

    Traces the inputs of each update backwards through the graph. A path ends at an exchange, such as Horovod's
    allreduce or `HostSum`, because the result of an exchange is equal on all workers. If a path reaches the examples,
    the variable differs between workers. A function call counts as an exchange if the function contains one, and a
    conditional counts as an exchange if one of its branches contains one.
    """
    graph = _Graph(getattr(train_op, "op", train_op))
    return [variable for variable in variables if graph.is_own(graph.updates(variable.op))]


def summed_over_examples(loss: tf.Tensor) -> str:
    """Returns the name of the operation that sums a loss over the examples of a batch; "" if none is found.

    Traces the additions and products of the loss backwards to the first mean, division or sum. A sum that is multiplied
    by a constant counts as a sum. A sum that is divided by anything does not.
    """
    graph, seen, queue = _Graph(loss.op), set(), [loss.op]
    while queue:
        op = queue.pop()
        if op in seen:
            continue
        seen.add(op)
        if op.type == "Sum" and _reduces_first_axis(op) and graph.is_own([op]):
            return op.name
        if op.type in _KEEP_SUMS:
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
        """Returns the operations of the `train_op` that update a variable, given the variable's own operation."""
        found, seen, queue = [], set(), list(variable.outputs)
        while queue:
            tensor = queue.pop()
            for op in tensor.consumers():
                if op in seen or op not in self._run:
                    continue
                seen.add(op)
                if _UPDATE.match(op.type) or any(_UPDATE.match(node.op) for node in self._called(op.node_def)):
                    found.append(op)
                # Follow the outputs that pass on the handle or the reference.
                queue += [out for out in op.outputs if out.dtype == tf.resource or out.dtype != out.dtype.base_dtype]
        return found

    def is_own(self, updates: Iterable[tf.Operation]) -> bool:
        """Returns whether one of these operations depends on a value that differs between workers."""
        taken = []
        for op in updates:
            if not any(_is_exchange(node.op, node.name) for node in self._called(op.node_def)):
                taken += [tensor.op for tensor in op.inputs]
        return self._reaches_own(taken, set(updates))

    def _reaches_own(self, queue: list[tf.Operation], seen: set[tf.Operation]) -> bool:
        """Returns whether a backward path from the queue reaches a value that differs between workers."""
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
                # A conditional of TensorFlow 1. Horovod exchanges in one branch, and a single worker takes the other.
                if all(self._reaches_own([branch], set(seen)) for branch in branches):
                    return True
                continue
            if op.type in _VARIABLE and not _is_trainable(op):
                queue += self.updates(op)  # For example, the sum of the gradients of several steps.
            queue += branches
        return False

    def _called(self, node: tf1.NodeDef) -> list[tf1.NodeDef]:
        """Returns the nodes of all functions that a node calls, directly or indirectly."""
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
    """Returns whether an operation belongs to a trainable variable, whose updates are checked separately."""
    return any(variable.op is op for variable in tf1.trainable_variables())


def _functions(node: tf1.NodeDef) -> list[str]:
    """Returns the names of the functions that a node calls."""
    values: Mapping[str, tf1.AttrValue] = node.attr
    names = [name for value in values.values() for name in (value.func.name, *(f.name for f in value.list.func))]
    return [name for name in names if name]


class EqualVariables:
    """Compares the trainable variables of the current graph across all ranks. With one worker, does nothing.

    The ranks compare a checksum of each variable's bits, so a comparison reads the variables once and exchanges 8 bytes
    per variable. Only variables whose checksums differ are compared value by value.
    """

    def __init__(self) -> None:
        several = distributed.size() > 1
        found = [v for v in tf1.trainable_variables() if several and v.dtype.base_dtype.is_floating]
        self._variables = {variable.op.name: variable for variable in found}
        with tf.device("/cpu:0"):
            self._sums = [_checksum(variable) for variable in found]
        self._has_warned = False

    def check(self, session: tf1.Session, step: int) -> None:
        """Checks that the variables are equal on all ranks, apart from rounding. A collective.

        Raises:
          UserError: some variables differ. The message names up to five of them.
        """
        if not self._variables:
            return
        own = np.array(session.run(self._sums), np.int64)
        sums = distributed.all_gather(own, "dense_checksums").reshape(distributed.size(), -1)
        names = [name for name, of_ranks in zip(self._variables, sums.T, strict=True) if len(set(of_ranks)) > 1]
        if names:
            self._compare(session, step, names)

    def _compare(self, session: tf1.Session, step: int, names: list[str]) -> None:
        own = session.run([self._variables[name] for name in names])
        of_rank_0 = distributed.broadcast_arrays(own, "dense_variables_of_rank_0")
        apart = np.array([_apart(*pair) for pair in zip(own, of_rank_0, strict=True)])
        most = distributed.all_gather(apart, "dense_differences").reshape(distributed.size(), -1).max(axis=0)
        found = [(name, part) for name, part in zip(names, most, strict=True) if part > _ROUNDING]
        if found:
            named = ", ".join(f"{name} (by {part:.2g} of its largest value)" for name, part in found[:_NAMED])
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            raise UserError(
                f"the workers no longer train one model: at step {step} these variables differ between the "
                f"{distributed.size()} ranks: {named}{more}. Something updates them outside the exchange of gradients: "
                "have every optimizer that updates them exchange, by DistributedOptimizer(optimizer), and have hooks "
                "do the same on all ranks"
            )
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "at step %d %s differs between the ranks by %.2g of its largest value, as rounding makes it",
                step,
                names[int(most.argmax())],
                most.max(),
            )


def _checksum(variable: tf1.Variable) -> tf.Tensor:
    """Returns the sum of a variable's values, reading their bits as integers. The sum wraps around."""
    value = variable.read_value()
    integers = {2: tf.int16, 4: tf.int32, 8: tf.int64}[value.dtype.size]
    bits = tf.bitcast(value, integers)
    return tf.cast(tf.reduce_sum(tf.cast(bits, tf.int32) if integers == tf.int16 else bits), tf.int64)


def _apart(own: np.ndarray, other: np.ndarray) -> float:
    """Returns the largest difference relative to the largest value; 0 if a value is not finite.

    Other checks refuse values that are not finite.
    """
    own, other = own.astype(np.float64), other.astype(np.float64)
    if not (own.size and np.isfinite(own).all() and np.isfinite(other).all()):
        return 0.0
    return float(np.abs(own - other).max() / max(np.abs(other).max(), np.abs(own).max(), np.finfo(np.float64).tiny))
