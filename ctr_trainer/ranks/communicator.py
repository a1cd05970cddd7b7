"""Connects the ranks of a job by Horovod, or by nothing for a lone worker."""

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Protocol

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.system.messages.errors import UserError

_BUILD = "python -m ctr_trainer.installation.build_horovod"


class Communicator(Protocol):
    """Connects the ranks of a job. Every method with a `name` is a collective."""

    def check(self, workers: int) -> None:
        """Raises UserError if this library cannot connect this number of workers."""

    def connect(self, first_ranks: Sequence[int]) -> None:
        """Connects the ranks. A collective.

        Args:
          first_ranks: the first rank of each host, for `optimizer(between_hosts=True)`; empty if it is not used.
        """

    def rank(self) -> int:
        """Returns the rank of this process."""

    def size(self) -> int:
        """Returns the number of ranks."""

    def local_rank(self) -> int:
        """Returns the rank of this process among the processes of its host."""

    def local_size(self) -> int:
        """Returns the number of ranks on this host."""

    def cross_rank(self) -> int:
        """Returns the number of this host among the hosts that have a worker with this local rank."""

    def optimizer(
        self, inner: tf1.train.Optimizer, local: Sequence[tf.Tensor], fp16: bool, op: str, between_hosts: bool
    ) -> tf1.train.Optimizer:
        """Returns an optimizer around `inner` that exchanges its gradients, see `distributed.optimizer`."""

    def broadcast_hook(self) -> tf1.train.SessionRunHook:
        """Returns the hook that broadcasts the variables of rank 0 when the session starts."""

    def allreduce(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the sum of all ranks' tensors, inside the graph."""

    def allgather(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the concatenated tensors of all ranks, inside the graph."""

    def broadcast(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the tensor of rank 0, inside the graph."""


class OneWorker:
    """A single worker without a library: this process is rank 0 of 1.

    Args:
      why: why Horovod cannot be imported.
    """

    def __init__(self, why: str) -> None:
        self._why = why

    def check(self, workers: int) -> None:
        if workers > 1:
            raise UserError(
                f"{workers} workers need Horovod with TensorFlow support, which cannot be imported ({self._why}): "
                f"build it with `{_BUILD}`, or train with one worker"
            )

    def connect(self, first_ranks: Sequence[int]) -> None:
        pass

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 1

    def local_rank(self) -> int:
        return 0

    def local_size(self) -> int:
        return 1

    def cross_rank(self) -> int:
        return 0

    def optimizer(
        self, inner: tf1.train.Optimizer, local: Sequence[tf.Tensor], fp16: bool, op: str, between_hosts: bool
    ) -> tf1.train.Optimizer:
        return inner

    def broadcast_hook(self) -> tf1.train.SessionRunHook:
        return tf1.train.SessionRunHook()

    def allreduce(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        return tf.identity(tensor)

    def allgather(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        return tf.identity(tensor)

    def broadcast(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        return tf.identity(tensor)


class Horovod:
    """The ranks that `horovodrun` has started; rank 0 of 1 without `horovodrun`.

    Args:
      hvd: the module `horovod.tensorflow`.
    """

    def __init__(self, hvd: ModuleType) -> None:
        self._hvd = hvd
        self._first_ranks = None
        self.rank: Callable[[], int] = hvd.rank
        self.size: Callable[[], int] = hvd.size
        self.local_rank: Callable[[], int] = hvd.local_rank
        self.local_size: Callable[[], int] = hvd.local_size
        self.cross_rank: Callable[[], int] = hvd.cross_rank

    def check(self, workers: int) -> None:
        pass

    def connect(self, first_ranks: Sequence[int]) -> None:
        # Adding it later would need HOROVOD_DYNAMIC_PROCESS_SETS, with which all ranks negotiate process sets in each
        # cycle.
        self._first_ranks = self._hvd.ProcessSet(first_ranks) if first_ranks else None
        self._hvd.init(process_sets=[self._first_ranks] if first_ranks else None)

    def optimizer(
        self, inner: tf1.train.Optimizer, local: Sequence[tf.Tensor], fp16: bool, op: str, between_hosts: bool
    ) -> tf1.train.Optimizer:
        hvd = self._hvd
        ranks = {"process_set": self._first_ranks} if between_hosts else {}
        wrapped = hvd.DistributedOptimizer(
            inner,
            compression=hvd.Compression.fp16 if fp16 else hvd.Compression.none,
            op={"average": hvd.Average, "sum": hvd.Sum}[op],
            scale_local_gradients=False,
            **ranks,
        )
        for tensor in local:
            wrapped.register_local_var(tensor)
        return wrapped

    def broadcast_hook(self) -> tf1.train.SessionRunHook:
        return self._hvd.BroadcastGlobalVariablesHook(0)

    def allreduce(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        return self._hvd.allreduce(tensor, op=self._hvd.Sum, name=name)

    def allgather(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        return self._hvd.allgather(tensor, name=name)

    def broadcast(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        return self._hvd.broadcast(tensor, 0, name=name)


def open_communicator() -> Communicator:
    """Returns `Horovod` if it is installed, otherwise `OneWorker`."""
    # Horovod defines its session hooks only if this name exists, which TensorFlow 2.16 removed with tf.estimator.
    tf.train.SessionRunHook = tf1.train.SessionRunHook
    try:
        import horovod.tensorflow as hvd
    except ImportError as error:
        return OneWorker(str(error))
    if not hasattr(
        hvd, "BroadcastGlobalVariablesHook"
    ):  # Horovod was imported earlier, and is not this package's build.
        hvd = importlib.reload(hvd)
    return Horovod(hvd)
