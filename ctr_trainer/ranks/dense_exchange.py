"""The exchange of dense gradients: how workers compute the mean of their gradients, or of their dense variables."""

import functools
import os

import tensorflow as tf

from ctr_trainer.graph_notes.batch_weight import BatchWeight, share_of
from ctr_trainer.messages.errors import UserError
from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.host_sum import HostSum
from ctr_trainer.ranks.mean_optimizer import Fused, MeanOptimizer

tf1 = tf.compat.v1
WAYS = ("auto", "shared_memory", "horovod")
# The settings of Horovod's exchange that horovodrun or the environment may give.
SETTINGS = (
    *("HOROVOD_AUTOTUNE", "HOROVOD_AUTOTUNE_LOG", "HOROVOD_TIMELINE", "HOROVOD_FUSION_THRESHOLD"),
    *("HOROVOD_CYCLE_TIME", "HOROVOD_CACHE_CAPACITY", "HOROVOD_HIERARCHICAL_ALLREDUCE"),
)
# Those that were given when this process started: this package sets some itself, later.
_asked = [name for name in SETTINGS if os.environ.get(name)]

_how = "auto"


def choose(how):
    """Sets how workers exchange their dense gradients and variables from now on; call it alike on every rank.

    Args:
      how: one of `WAYS`.

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
    """-> whether `sum_of_ranks` will go through Horovod; False for a lone worker. May be asked before `init`.

    Args:
      how: one of `WAYS`.
    """
    # Before `distributed.init` the numbers of workers are known from horovodrun's variables only.
    here, workers = (int(os.environ.get(f"HOROVOD_{what}", 1)) for what in ("LOCAL_SIZE", "SIZE"))
    return workers > 1 and not _through_memory(how, here == workers)


def optimizer(inner, fp16=False, beside=False):
    """Makes an optimizer whose gradients are means over all workers, weighted by the workers' examples.

    It is a `HostSumOptimizer` if all workers are on one host, compute on its CPUs and none of Horovod's own `SETTINGS`
    is given; else a `HorovodOptimizer`. `choose` may decide otherwise.

    Args:
      inner: the optimizer of one worker, with a `weight`.
      fp16: whether Horovod sends float16; the sum is then in float16 too.
      beside: whether other operations have to run during the exchange; then Horovod's threads do it.

    Returns:
      `MeanOptimizer`.
    """
    return HostSumOptimizer(inner) if is_in_memory(fp16 or beside) else HorovodOptimizer(inner, fp16)


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
            vectors = fused.vectors(weight)
            return fused.means({d: sum_of_ranks(v, f"dense_gradients.{d.name}") for d, v in vectors.items()})


def average_of_ranks(variables, name):
    """-> operation that sets float variables to their mean over the ranks. A collective.

    Args:
      variables: list of variables.
      name: name of the reduction, the same on every rank.
    """
    with tf.name_scope("dense_exchange"):
        fused = Fused([variable.read_value() for variable in variables])
        vectors = fused.vectors(1.0)
        means, _ = fused.means({d: sum_of_ranks(v, f"{name}.{d.name}") for d, v in vectors.items()})
        return tf.group(*(v.assign(mean, read_value=False) for v, mean in zip(variables, means, strict=True)))


def sum_of_ranks(tensor, name, beside=False):
    """-> the sum of all ranks' tensors, inside the graph. A collective.

    It goes through Horovod or through memory, as the gradients of `optimizer` do.

    Args:
      tensor: of a static shape; shape and dtype are the same on every rank.
      name: name of the reduction, the same on every rank.
      beside: as for `optimizer`.
    """
    if is_in_memory(beside):
        host_sum = _host_sum(name, tensor.shape.num_elements(), tensor.dtype.as_numpy_dtype)
        with tf.device("/cpu:0"):
            result = tf.numpy_function(host_sum, [tf.reshape(tensor, [-1])], tensor.dtype, name=f"host_sum.{name}")
        return tf.reshape(result, tensor.shape)
    return distributed.allreduce(tensor, name)


def is_in_memory(wants_horovod=False):
    """-> whether `sum_of_ranks` goes through shared memory.

    Args:
      wants_horovod: whether the caller needs something that only Horovod does.
    """
    on_one_host = distributed.local_size() == distributed.size()
    return distributed.size() > 1 and _through_memory(_how, on_one_host, wants_horovod)


def _through_memory(how, on_one_host, wants_horovod=False):
    """-> whether several workers exchange through memory."""
    if how != "auto":
        return how == "shared_memory"
    return on_one_host and not wants_horovod and not _asked and not tf.config.list_physical_devices("GPU")


@functools.cache
def _host_sum(name, length, dtype):
    """-> f(vector) -> sums, watched by the watchdog. As with Horovod, one per name, for all graphs."""
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
