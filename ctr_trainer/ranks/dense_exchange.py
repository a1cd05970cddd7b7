"""Chooses how workers compute the mean of their dense gradients, or of their dense variables."""

import dataclasses
import functools
import os
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.host_sum import HostSum, host_peers
from ctr_trainer.ranks.notices import Placement

WAYS = ("auto", "horovod")
_TITLES = {
    "none": "none",
    "shared_memory": "HostSumOptimizer, through shared memory",
    "hosts": "HostSumOptimizer, through shared memory within each host and by hvd.allreduce between the hosts",
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
