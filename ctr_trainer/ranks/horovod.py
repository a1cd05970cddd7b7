"""Horovod, or what replaces it for one worker, and the options of sessions."""

import importlib
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1
from tensorflow.core.protobuf import rewriter_config_pb2

from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import hardware

_ON = rewriter_config_pb2.RewriterConfig.ON
_BUILD = "python -m ctr_trainer.system.installation.build_horovod"


def config_proto(
    gpus: int, local_rank: int, threads: int = 0, precision: str = "none", gpus_each: int = 1
) -> tf1.ConfigProto:
    """Makes the options of a worker's sessions. If there are GPUs, each process uses the GPUs of its local rank.

    With `bfloat16`, for CPUs, oneDNN multiplies matrices in bfloat16, with 8 instead of 24 significant bits, and
    accumulates the products in float32. With `float16`, for GPUs, TensorFlow rewrites the graph so that matrix products
    and the operations around them are in float16, for Tensor Cores. In both cases, variables, the sums of their
    gradients, the loss and everything else stay float32.

    Args:
      gpus: number of GPUs that this process sees, see CUDA_VISIBLE_DEVICES.
      threads: number of threads within an operation, and between operations; 0 lets TensorFlow choose.
      gpus_each: number of GPUs that each process uses. Local rank r uses the GPUs from index r * gpus_each on.

    Raises UserError: there are too few GPUs for this local rank; `bfloat16` is set on a GPU, or on a processor without
    instructions for it; or `float16` is set without a GPU.
    """
    config = tf1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
    # Idle threads that spin would occupy the core that Horovod's background thread needs.
    config.experimental.disable_thread_spinning = True
    rewriting = config.graph_options.rewrite_options
    if precision == "bfloat16":
        if gpus:
            raise UserError(
                "mixed_precision=bfloat16 is for CPUs: on a GPU, TensorFlow already multiplies float32 as TF32; use "
                "float16 for GPUs"
            )
        if not hardware.has_bfloat16():
            raise UserError(
                "mixed_precision=bfloat16: this processor has no instructions for it (AVX-512 BF16 or AMX), so it "
                "would be slower than float32: leave it out"
            )
        rewriting.auto_mixed_precision_onednn_bfloat16 = _ON
    elif precision == "float16":
        if not gpus:
            raise UserError(
                "mixed_precision=float16 is for GPUs, but this process sees none: use bfloat16, or leave it out"
            )
        rewriting.auto_mixed_precision = _ON
    if gpus:
        first = local_rank * gpus_each
        if first + gpus_each > gpus:
            needed = "GPU" if gpus_each == 1 else f"{gpus_each} GPUs"
            raise UserError(
                f"local rank {local_rank} has no {needed} of its own: this process sees {gpus}. Start fewer workers "
                "per host (horovodrun -H), or add GPUs to CUDA_VISIBLE_DEVICES"
            )
        config.gpu_options.visible_device_list = ",".join(map(str, range(first, first + gpus_each)))
        config.gpu_options.allow_growth = True
    return config


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
