"""How workers compute the mean of their dense gradients or variables: the choice, and the means."""

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.host_sum import HostSum, host_peers
from ctr_trainer.ranks.notices import Placement

WAYS = ("auto", "horovod")
_TITLES = {
    "none": "none",
    "shared_memory": "HostSum, through shared memory",
    "hosts": "HostSum, through shared memory within each host and by hvd.allreduce between the hosts",
    "horovod": "hvd.DistributedOptimizer",
}
# Settings of Horovod's exchange, which horovodrun or the user may set.
SETTINGS = (
    *("HOROVOD_AUTOTUNE", "HOROVOD_AUTOTUNE_LOG", "HOROVOD_TIMELINE", "HOROVOD_FUSION_THRESHOLD"),
    *("HOROVOD_CYCLE_TIME", "HOROVOD_CACHE_CAPACITY", "HOROVOD_HIERARCHICAL_ALLREDUCE"),
)
# The settings that were present when this process started. Later, this package itself sets some of them.
_asked = [name for name in SETTINGS if os.environ.get(name)]


@dataclasses.dataclass(frozen=True)
class Exchange:
    """How the mean of the workers' dense gradients, or of their dense variables, is computed.

    Attributes:
      way: one of `_TITLES`.
      why: the reason, a clause that can follow "because".
    """

    way: str
    why: str

    @property
    def is_in_memory(self) -> bool:
        """Whether all workers share the memory of one host."""
        return self.way == "shared_memory"

    def __str__(self) -> str:
        return f"gradient exchange: {_TITLES[self.way]}, because {self.why}"


def exchange(how: str = "auto", only_horovod: str = "") -> Exchange:
    """Returns how workers exchange the gradients of a step, which depends on their hosts and devices.

    Before `distributed.init`, the way is `horovod` for `hosts`, in which steps also wait for Horovod.

    Args:
      how: one of `WAYS`, the same on all ranks.
      only_horovod: the reason why only Horovod can exchange these gradients; "" if there is none.
    """
    placement = Placement.of_this_process()
    workers = placement.size
    if workers == 1:
        return Exchange("none", "there is one worker")
    if only_horovod:
        return Exchange("horovod", only_horovod)
    if how == "horovod":
        return Exchange(how, f"dense_exchange={how} was chosen")
    if tf.config.list_physical_devices("GPU"):
        return Exchange("horovod", "the workers compute on GPUs")
    if _asked:
        return Exchange("horovod", f"{_asked[0]} is set, which is a setting of Horovod's exchange")
    if placement.is_on_one_host:
        return Exchange("shared_memory", f"all {workers} workers compute on the CPUs of one host")
    if distributed.sums_by_host():
        return Exchange("hosts", f"the {workers} workers are on several hosts, several of them on one")
    return Exchange("horovod", f"the {workers} workers are on several hosts")


def sum_of_host(tensor: tf.Tensor, name: str) -> tf.Tensor:
    """Returns the sum of the tensors of the ranks of one host, inside the graph and in shared memory. A collective.

    Args:
      tensor: tensor with a static shape; shape and dtype are the same on every rank.
      name: name of the reduction, the same on every rank.
    """
    return _in_memory(HostSum.__call__, tensor, name, f"the other ranks in {name}")


def sum_of_hosts(tensor: tf.Tensor, name: str) -> tf.Tensor:
    """Returns the sum of the tensors of all ranks: in shared memory within each host, and by Horovod between the hosts.

    Only the first rank of each host takes part in Horovod's sum. All ranks get the same bits. A collective; for the
    arguments, see `sum_of_host`.
    """
    total = _in_memory(HostSum.to_first, tensor, name, f"the other ranks of this host in {name}")
    if distributed.local_rank() == 0:
        total = distributed.allreduce(total, name, of_first_ranks=True)
    first = distributed.rank() - distributed.local_rank()
    what = f"rank {first}, which sums {name} of this host with the other hosts"
    return _in_memory(HostSum.from_first, total, name, what)


def _in_memory(
    method: Callable[[HostSum, np.ndarray], np.ndarray], tensor: tf.Tensor, name: str, what: str
) -> tf.Tensor:
    """Applies a method of the `HostSum` of this name to a tensor, inside the graph. A collective of the host."""
    host_sum = _host_sum(name, tensor.shape.num_elements(), tensor.dtype.as_numpy_dtype)

    def watched(vector: np.ndarray) -> np.ndarray:
        with distributed.watchdog().waiting(what):
            return method(host_sum, vector)

    with tf.device("/cpu:0"):
        result = tf.numpy_function(watched, [tf.reshape(tensor, [-1])], tensor.dtype, name=f"host_sum.{name}")
    return tf.reshape(result, tensor.shape)


@functools.cache
def _host_sum(name: str, length: int, dtype: type) -> HostSum:
    """Returns the `HostSum` of this host's workers. There is one per name, for all graphs, as in Horovod."""
    with distributed.watchdog().waiting(f"the start of the sums of {name} on all hosts"):
        return HostSum(host_peers(f"host_sum.{name}"), length, dtype)


def share_of(
    gradient: tf.Tensor | tf.IndexedSlices, weight: tf.Tensor, total: tf.Tensor
) -> tf.Tensor | tf.IndexedSlices:
    """Computes weight / total * gradient, where `weight` is this worker's part of all examples, `total`.

    If the batch is only padding, the result is 0 even if the gradient is not finite. `tf.IndexedSlices` then have no
    rows, because some optimizers update a row by its momentum even if its gradient is 0.
    """
    factor = tf.cast(tf.math.divide_no_nan(weight, total), gradient.dtype)
    if isinstance(gradient, tf.IndexedSlices):
        rows = tf.where(weight > 0, tf.shape(gradient.indices)[0], 0)
        return tf.IndexedSlices(gradient.values[:rows] * factor, gradient.indices[:rows], gradient.dense_shape)
    return tf.math.multiply_no_nan(gradient, factor)


def fused_means(
    tensors: list[tf.Tensor], weight: tf.Tensor | float, add_up: Callable[[tf.Tensor, str], tf.Tensor]
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns the mean of each tensor over batches or workers i, and the sum of the weights.

        mean = sum_i W_i t_i / sum_i W_i, and 0 if all W_i are 0

    With the sum of the weights, means of means are correct for any split of the examples. The tensors are fused into
    one vector per dtype, with the weight as its last element. Tensors with less than 32 bits per element are converted
    to float32.

    Args:
      tensors: the tensors t_i of this batch, dense and with static shapes.
      weight: scalar W_i, the weight of this batch.
      add_up: f(vector, name of its dtype) -> the sum of the vectors of all i.
    """
    by_dtype: dict[tf.DType, list[int]] = {tf.float32: []}  # Always present and first, for the weight.
    for place, tensor in enumerate(tensors):
        dtype = tensor.dtype.base_dtype
        by_dtype.setdefault(dtype if dtype.size >= 4 else tf.float32, []).append(place)
    means: list[tf.Tensor] = [None] * len(tensors)
    sums: list[tf.Tensor] = []
    for dtype, places in by_dtype.items():
        parts = [tf.reshape(tf.cast(tensors[place], dtype), [-1]) for place in places]
        # The 1 at the end becomes the weight by the same multiplication.
        vector = tf.concat([*parts, tf.ones([1], dtype)], 0) * tf.cast(weight, dtype)
        # Without a fixed order, a session with one thread could wait in one sum, and another rank in another sum.
        with tf.control_dependencies(sums):
            sums.append(add_up(vector, dtype.name))
        sizes = [tensors[place].shape.num_elements() for place in places]
        parts = tf.split(sums[-1] * tf.math.reciprocal_no_nan(sums[-1][-1]), [*sizes, 1])
        for place, part in zip(places, parts, strict=False):
            means[place] = tf.cast(tf.reshape(part, tensors[place].shape), tensors[place].dtype)
    return means, sums[0][-1]


def mean_over_ranks(
    tensors: list[tf.Tensor | tf.IndexedSlices], weight: tf.Tensor, exchange: Exchange, fp16: bool = False
) -> tuple[list[tf.Tensor | tf.IndexedSlices], tf.Tensor]:
    """Returns each gradient's mean over all workers, weighted by their examples, and the sum of the weights.

    By Horovod, each gradient is multiplied by this worker's share of the examples, and `hvd.DistributedOptimizer` sums
    it as soon as the backward pass has computed it. Horovod fuses gradients that are ready at the same time. Otherwise
    the gradients are summed by `HostSum`: all tensors of a dtype are one vector, so each step computes one sum per
    dtype. With several hosts, Horovod adds up one vector per host, for any number of workers on it.

    A collective.

    Args:
      tensors: this worker's gradients. Only Horovod sums `tf.IndexedSlices`.
      weight: scalar float32, the sum of the weights of this worker's examples.
      fp16: whether Horovod sends float16; the sum is then in float16 as well.
    """
    with tf.name_scope("dense_exchange"):
        if exchange.way != "horovod":
            add_up = sum_of_host if exchange.is_in_memory else sum_of_hosts
            return fused_means(tensors, weight, lambda vector, dtype: add_up(vector, f"dense_gradients.{dtype}"))
        total = distributed.allreduce(weight, "examples")
        shares = [share_of(tensor, weight, total) for tensor in tensors]
    if not shares:  # `hvd.DistributedOptimizer` requires at least one gradient.
        return [], total
    pairs = distributed.optimizer(_Computed(shares), fp16=fp16, op="sum").compute_gradients()
    return [gradient for gradient, _ in pairs], total


class _Computed(tf1.train.Optimizer):
    """Gives `hvd.DistributedOptimizer` gradients that were computed already."""

    def __init__(self, gradients: list[tf.Tensor | tf.IndexedSlices]) -> None:
        super().__init__(use_locking=False, name=type(self).__name__)
        self._gradients = gradients

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[tf.Tensor | tf.IndexedSlices, tf.Tensor]]:
        """Returns the gradients, each with a tensor of its own instead of a variable."""
        return [(each, getattr(each, "values", each)) for each in self._gradients]


def average_of_ranks(variables: list[tf.Variable], in_memory: bool) -> tf.Operation:
    """Returns the operation that sets float variables to their mean over the ranks. A collective.

    `in_memory`: whether all ranks share the memory of one host; otherwise Horovod sums.
    """
    with tf.name_scope("dense_exchange"):
        values = [variable.read_value() for variable in variables]
        add_up = sum_of_host if in_memory else distributed.allreduce
        means, _ = fused_means(values, 1.0, lambda vector, dtype: add_up(vector, f"dense_variables.{dtype}"))
        return tf.group(*(v.assign(mean, read_value=False) for v, mean in zip(variables, means, strict=True)))
