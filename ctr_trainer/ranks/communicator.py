"""Imports Horovod, which connects the ranks of a job, or its replacement for a single worker."""

import importlib
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.system.messages.errors import UserError

_BUILD = "python -m ctr_trainer.installation.build_horovod"


class OneWorker:
    """Replaces the module `horovod.tensorflow` if it cannot be imported: this process is rank 0 of 1."""

    Sum = None

    def __init__(self, why: str) -> None:
        self._why = why

    def check(self, workers: int) -> None:
        """Raises UserError if there are several workers."""
        if workers > 1:
            raise UserError(
                f"{workers} workers need Horovod with TensorFlow support, which cannot be imported ({self._why}): "
                f"build it with `{_BUILD}`, or train with one worker"
            )

    def init(self, process_sets: None) -> None:
        pass

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 1

    local_rank, local_size = rank, size

    def allreduce(self, tensor: tf.Tensor, op: None, name: str) -> tf.Tensor:
        return tf.identity(tensor)


def import_horovod() -> Any:
    """Returns the module `horovod.tensorflow` if Horovod is installed, otherwise `OneWorker`."""
    # Horovod defines its session hooks only if this name exists. TensorFlow 2.16 removed the name with tf.estimator.
    tf.train.SessionRunHook = tf1.train.SessionRunHook
    try:
        import horovod.tensorflow as hvd
    except ImportError as error:
        return OneWorker(str(error))
    # Without the hook, Horovod was imported earlier, and is not this package's build.
    if not hasattr(hvd, "BroadcastGlobalVariablesHook"):
        hvd = importlib.reload(hvd)
    return hvd
