"""How the workers' dense gradients, and their dense variables, are summed."""

import functools
import os

import tensorflow as tf

from ctr_trainer import distributed
from ctr_trainer.errors import UserError
from ctr_trainer.host_sum import HostSum

WAYS = ("auto", "shared_memory", "horovod")

_how = "auto"


def choose(how):
    """Says how `sum_of_ranks` sums, from now on, alike on every rank.

    Args:
      how: of `WAYS`.

    Raises:
      UserError: `shared_memory` for workers on several hosts.
    """
    global _how
    here, workers = distributed.local_size(), distributed.size()
    if how == "shared_memory" and here != workers:
        raise UserError(
            f"--dense_exchange=shared_memory is for workers on one host, and {here} of {workers} are on this one: "
            "leave it out"
        )
    _how = how


def is_by_horovod(how):
    """-> whether `sum_of_ranks` will go through Horovod, to be asked before `distributed.init`; for a lone worker not.

    Args:
      how: of `WAYS`.
    """
    # horovodrun says how many there are.
    here, workers = (int(os.environ.get(f"HOROVOD_{what}", 1)) for what in ("LOCAL_SIZE", "SIZE"))
    return workers > 1 and not _through_memory(how, here == workers)


def sum_of_ranks(tensor, name, fp16=False, beside=False):
    """-> the sum of every rank's tensor (equal static shapes and dtypes), inside the graph. A collective.

    It goes through Horovod, or, between workers that compute on the processor of one host, through memory that they
    share (`HostSum`), unless `choose` says otherwise.

    Args:
      name: of the reduction, the same on every rank.
      fp16: send float16, by Horovod; the sum is then in float16 too.
      beside: whether other operations are to run meanwhile, which Horovod's threads let them.
    """
    if is_in_memory(fp16 or beside):
        host_sum = _host_sum(name, tensor.shape.num_elements(), tensor.dtype.as_numpy_dtype)
        with tf.device("/cpu:0"):
            result = tf.numpy_function(host_sum, [tf.reshape(tensor, [-1])], tensor.dtype, name=f"host_sum.{name}")
        return tf.reshape(result, tensor.shape)
    return distributed.allreduce(tensor, name, fp16)


def is_in_memory(wants_horovod=False):
    """Whether `sum_of_ranks` goes through shared memory.

    Args:
      wants_horovod: whether there is something in its call that only Horovod does.
    """
    on_one_host = distributed.local_size() == distributed.size()
    return distributed.size() > 1 and _through_memory(_how, on_one_host, wants_horovod)


def _through_memory(how, on_one_host, wants_horovod=False):
    """-> whether several workers exchange in memory."""
    if how != "auto":
        return how == "shared_memory"
    return on_one_host and not wants_horovod and not tf.config.list_physical_devices("GPU")


@functools.cache
def _host_sum(name, length, dtype):
    """-> f(vector) -> sums, watched; like Horovod's, one a name, whatever graph it is for."""
    what = f"the other ranks in {name}"
    with distributed.watchdog().waiting(what):
        host_sum = HostSum(
            distributed.rank(),
            distributed.size(),
            length,
            dtype,
            agree=lambda value: distributed.broadcast_object(value, f"host_sum.{name}"),
            meet=lambda: distributed.barrier(f"host_sum.{name}"),
        )

    def watched(vector):
        with distributed.watchdog().waiting(what):
            return host_sum(vector)

    return watched
