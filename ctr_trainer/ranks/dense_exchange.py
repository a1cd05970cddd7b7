"""The exchange of dense gradients: how workers compute the mean of their gradients, or of their dense variables."""

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from ctr_trainer.graph_notes.batch_weight import share_of
from ctr_trainer.graph_notes.notes import BatchWeight
from ctr_trainer.messages.errors import UserError
from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.host_sum import HostSum
from ctr_trainer.ranks.mean_optimizer import Fused, MeanOptimizer

WAYS = ("auto", "shared_memory", "hosts", "horovod")
_TITLES = {
    "none": "none",
    "shared_memory": "HostSumOptimizer, through shared memory",
    "hosts": "HostsOptimizer, through shared memory within each host and by hvd.DistributedOptimizer between the hosts",
    "horovod": "hvd.DistributedOptimizer",
}
# The settings of Horovod's exchange that horovodrun or the environment may give.
SETTINGS = (
    *("HOROVOD_AUTOTUNE", "HOROVOD_AUTOTUNE_LOG", "HOROVOD_TIMELINE", "HOROVOD_FUSION_THRESHOLD"),
    *("HOROVOD_CYCLE_TIME", "HOROVOD_CACHE_CAPACITY", "HOROVOD_HIERARCHICAL_ALLREDUCE"),
)
# Those that were given when this process started: this package sets some itself, later.
_asked = [name for name in SETTINGS if os.environ.get(name)]

_how = "auto"


@dataclasses.dataclass(frozen=True)
class Exchange:
    """Who computes the mean of the workers' dense gradients in a step.

    Attributes:
      way: one of `WAYS` without `auto`, or `none` for a lone worker.
      why: the reason, which completes a sentence after "because".
    """

    way: str
    why: str

    def __str__(self) -> str:
        return f"gradient exchange: {_TITLES[self.way]}, because {self.why}"


def choose(how: str) -> None:
    """Sets how workers exchange their dense gradients and variables from now on; call it alike on every rank.

    Args:
      how: one of `WAYS`.

    Raises:
      UserError: `shared_memory` for workers on several hosts; `hosts` without several hosts and several workers on one.
    """
    global _how
    here, workers = distributed.local_size(), distributed.size()
    if how == "shared_memory" and here != workers:
        raise UserError(
            f"--dense_exchange=shared_memory is for workers on one host, and {here} of {workers} are on this one: "
            "leave it out"
        )
    if how == "hosts" and workers > 1 and not distributed.sums_by_host():
        raise UserError(
            f"--dense_exchange=hosts is for several hosts of which one has several workers, started by horovodrun, and "
            f"{here} of {workers} workers are on this host: leave it out"
        )
    _how = how


def is_by_horovod(how: str) -> bool:
    """Returns whether steps will wait for Horovod; False for a lone worker. It may be called before `init`.

    Args:
      how: one of `WAYS`.
    """
    # Before `distributed.init` the numbers of workers are known from horovodrun's variables only.
    here, workers = (int(os.environ.get(f"HOROVOD_{what}", 1)) for what in ("LOCAL_SIZE", "SIZE"))
    return _exchange(how, here, workers, by_host=False).way in ("horovod", "hosts")


def exchange(only_horovod: str = "") -> Exchange:
    """Returns how workers exchange the gradients of a step, as `choose` and the circumstances have it.

    Args:
      only_horovod: why only Horovod can exchange these gradients; "" if others can too.
    """
    here, workers = distributed.local_size(), distributed.size()
    if workers > 1 and only_horovod:
        return Exchange("horovod", only_horovod)
    return _exchange(_how, here, workers, distributed.sums_by_host())


def _exchange(how: str, here: int, workers: int, by_host: bool) -> Exchange:
    if workers == 1:
        return Exchange("none", "there is one worker")
    if how != "auto":
        return Exchange(how, f"dense_exchange={how} was chosen")
    if tf.config.list_physical_devices("GPU"):
        return Exchange("horovod", "the workers compute on GPUs")
    if _asked:
        return Exchange("horovod", f"{_asked[0]} is set, which is of Horovod's exchange")
    if here == workers:
        return Exchange("shared_memory", f"all {workers} workers compute on the CPUs of one host")
    if by_host:
        return Exchange("hosts", f"the {workers} workers are on several hosts, several of them on one")
    return Exchange("horovod", f"the {workers} workers are on several hosts")


def optimizer(inner: Any, exchange: Exchange, fp16: bool = False) -> MeanOptimizer:
    """Makes an optimizer whose gradients are means over all workers, weighted by the workers' examples.

    Args:
      inner: the optimizer of one worker, with a `weight`.
      exchange: see `exchange`; of several workers.
      fp16: whether Horovod sends float16; the sum is then in float16 too.
    """
    if exchange.way == "horovod":
        return HorovodOptimizer(inner, fp16)
    return {"shared_memory": HostSumOptimizer, "hosts": HostsOptimizer}[exchange.way](inner)


class HorovodOptimizer(MeanOptimizer):
    """`hvd.DistributedOptimizer` with `op=hvd.Sum`, around gradients multiplied by this worker's share of the examples.

    Each gradient is reduced by itself, as soon as the backward pass has computed it. Horovod fuses gradients that come
    together.

    Args:
      inner: the optimizer of one worker, with a `weight`.
      fp16: whether to send float16; the sum is then in float16 too.
    """

    def __init__(self, inner, fp16=False):
        self._of_examples = _ShareOfExamples(inner)
        super().__init__(distributed.optimizer(self._of_examples, fp16=fp16, op="sum"))

    def compute_gradients(self, *args, **kwargs):
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        self.weight = self._of_examples.weight
        return pairs[:-1]


class _ShareOfExamples(MeanOptimizer):
    """Multiplies gradients by this worker's share of all workers' examples; the last pair is the share itself.

    The share is known long before the gradients: the weights are reduced beside the forward pass.
    """

    def compute_gradients(self, *args, **kwargs):
        pairs = super().compute_gradients(*args, **kwargs)
        return [*pairs, (self._share, self._share)]  # `hvd.DistributedOptimizer` wants one pair at least.

    def _mean(self, tensors, weight):
        with tf.name_scope("dense_exchange"):
            total = distributed.allreduce(weight, "examples")
            self._share = tf.math.divide_no_nan(weight, total)
            return [share_of(tensor, BatchWeight(weight, total)) for tensor in tensors], total


class HostSumOptimizer(MeanOptimizer):
    """As `HorovodOptimizer`, but through memory that the workers of one host share, see `HostSum`.

    All tensors of a dtype are one vector, with the weight as its last element, so the workers meet once per step.
    """

    def _mean(self, tensors, weight):
        with tf.name_scope("dense_exchange"):
            fused = Fused(tensors)
            name = "dense_gradients"
            return fused.means(_in_turn(fused.vectors(weight), lambda v, dtype: sum_of_ranks(v, f"{name}.{dtype}")))


class HostsOptimizer(MeanOptimizer):
    """As `HostSumOptimizer` within each host; then the first ranks of the hosts sum by `hvd.DistributedOptimizer`.

    Each host sends one vector, for any number of workers on it. The other ranks of a host wait for their first one in
    the shared memory, and so all ranks get the same bits.

    Args:
      inner: the optimizer of one worker, with a `weight`.
    """

    def __init__(self, inner: Any) -> None:
        self._of_host = _SumOfHost(inner)
        super().__init__(distributed.optimizer(self._of_host, op="sum", between_hosts=True))

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[tf.Tensor, Any]]:
        """Does as `MeanOptimizer.compute_gradients`."""
        sums = [total for total, _ in self._optimizer.compute_gradients(*args, **kwargs)]
        with tf.name_scope("dense_exchange"), tf.control_dependencies(self._of_host.sums):
            sums = _in_turn(dict(zip(self._of_host.dtypes, sums, strict=True)), _from_first_of_host)
            means, self.weight = self._of_host.fused.means(sums)
        return [(mean, variable) for mean, (_, variable) in zip(means, self._of_host.pairs, strict=True)]

    def apply_gradients(self, *args: Any, **kwargs: Any) -> tf.Operation:
        """Calls `apply_gradients` of the inner optimizer."""
        return self._of_host.apply_gradients(*args, **kwargs)


class _SumOfHost(MeanOptimizer):
    """The sums of a host's workers, as vectors, on the first rank of the host.

    Attributes:
      pairs: (gradient, variable) of the inner optimizer.
      fused: `Fused` of these gradients.
      dtypes, sums: of the vectors.
    """

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Returns a pair for each vector; the vector itself stands for its variable, whose name Horovod wants."""
        self.pairs = self._optimizer.compute_gradients(*args, **kwargs)
        with tf.name_scope("dense_exchange"):
            self.fused = Fused([gradient for gradient, _ in self.pairs])
            sums = _in_turn(self.fused.vectors(self._optimizer.weight), _to_first_of_host)
        self.dtypes, self.sums = list(sums), list(sums.values())
        return [(total, total) for total in self.sums]


def _in_turn(
    vectors: dict[tf.DType, tf.Tensor], call: Callable[[tf.Tensor, str], tf.Tensor]
) -> dict[tf.DType, tf.Tensor]:
    """Returns what call(vector, name of its dtype) makes of each vector, one after another.

    A session with one thread would otherwise wait in one call while that of another rank waits in another one.
    """
    found: dict[tf.DType, tf.Tensor] = {}
    for dtype, vector in vectors.items():
        with tf.control_dependencies(list(found.values())):
            found[dtype] = call(vector, dtype.name)
    return found


def average_of_ranks(variables, name):
    """-> operation that sets float variables to their mean over the ranks. A collective.

    Args:
      variables: list of variables.
      name: name of the reduction, the same on every rank.
    """
    with tf.name_scope("dense_exchange"):
        fused = Fused([variable.read_value() for variable in variables])
        vectors = fused.vectors(1.0)
        means, _ = fused.means(_in_turn(vectors, lambda v, dtype: sum_of_ranks(v, f"{name}.{dtype}")))
        return tf.group(*(v.assign(mean, read_value=False) for v, mean in zip(variables, means, strict=True)))


def sum_of_ranks(tensor: tf.Tensor, name: str, by_horovod: bool = False) -> tf.Tensor:
    """Returns the sum of all ranks' tensors, inside the graph. A collective.

    It goes through shared memory if `is_in_memory`, else through Horovod.

    Args:
      tensor: of a static shape; shape and dtype are the same on every rank.
      name: name of the reduction, the same on every rank.
      by_horovod: whether it goes through Horovod in any case.
    """
    if by_horovod or not is_in_memory():
        return distributed.allreduce(tensor, name)
    return _in_memory(HostSum.__call__, tensor, name, f"the other ranks in {name}")


def is_in_memory() -> bool:
    """Returns whether `sum_of_ranks` goes through shared memory."""
    return exchange().way == "shared_memory"


def _to_first_of_host(vector: tf.Tensor, dtype: str) -> tf.Tensor:
    name = f"host_gradients.{dtype}"
    return _in_memory(HostSum.to_first, vector, name, f"the other ranks of this host in {name}")


def _from_first_of_host(vector: tf.Tensor, dtype: str) -> tf.Tensor:
    name, first = f"host_gradients.{dtype}", distributed.rank() - distributed.local_rank()
    what = f"rank {first}, which sums {name} of this host with the other hosts"
    return _in_memory(HostSum.from_first, vector, name, what)


def _in_memory(
    method: Callable[[HostSum, np.ndarray], np.ndarray], tensor: tf.Tensor, name: str, what: str
) -> tf.Tensor:
    """Returns what a method of a `HostSum` makes of a tensor, inside the graph. A collective of the host.

    Args:
      method: of `HostSum`.
      tensor: of a static shape.
      name: of the `HostSum`, the same on every rank.
      what: that the method waits for, as the watchdog names it.
    """
    host_sum = _host_sum(name, tensor.shape.num_elements(), tensor.dtype.as_numpy_dtype)

    def watched(vector: np.ndarray) -> np.ndarray:
        with distributed.watchdog().waiting(what):
            return method(host_sum, vector)

    with tf.device("/cpu:0"):
        result = tf.numpy_function(watched, [tf.reshape(tensor, [-1])], tensor.dtype, name=f"host_sum.{name}")
    return tf.reshape(result, tensor.shape)


@functools.cache
def _host_sum(name: str, length: int, dtype: type) -> HostSum:
    """Returns the `HostSum` of this host's workers. As with Horovod, there is one per name, for all graphs."""
    with distributed.watchdog().waiting(f"the start of the sums of {name} on all hosts"):
        return HostSum(
            distributed.local_rank(),
            distributed.local_size(),
            length,
            dtype,
            agree=lambda value: distributed.broadcast_object(value, f"host_sum.{name}"),
            meet=lambda: distributed.barrier(f"host_sum.{name}"),
            first=distributed.rank() - distributed.local_rank(),
        )
