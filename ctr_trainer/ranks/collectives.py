"""Horovod, the options of sessions, and collectives on NumPy arrays and JSON values outside the training graph."""

import functools
import importlib
import json
import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1
from tensorflow.core.protobuf import rewriter_config_pb2

from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import hardware
from ctr_trainer.system.processes.waiting import Watchdog

_ON = rewriter_config_pb2.RewriterConfig.ON
_log = logging.getLogger(__name__)
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


_Call = Callable[[np.ndarray], np.ndarray]


class Collectives:
    """Collectives on NumPy arrays and JSON values, of which `distributed` makes functions."""

    def __init__(
        self, hvd: Any, watchdog: Callable[[], Watchdog], session_config: Callable[[], tf1.ConfigProto]
    ) -> None:
        self._hvd, self._watchdog, self._session_config = hvd, watchdog, session_config
        self._call = functools.cache(self._make_call)

    def all_sum(self, array: np.ndarray, name: str) -> np.ndarray:
        """Returns the sum of all ranks' arrays, on every rank. A collective.

        Args:
          array: with the same shape and dtype on every rank.
          name: for the watchdog's messages, the same on every rank.
        """
        array = np.asarray(array)
        return array if self._hvd.size() == 1 else self._call("sum", array.dtype, name)(array)

    def all_gather(self, array: np.ndarray, name: str) -> np.ndarray:
        """Returns the concatenated arrays [n] of all ranks, which may have different n, on every rank. A collective."""
        array = np.asarray(array)
        return array if self._hvd.size() == 1 else self._call("gather", array.dtype, name)(array)

    def broadcast_arrays(self, arrays: list[np.ndarray], name: str) -> list[np.ndarray]:
        """Returns rank 0's arrays, whose number, shapes and dtypes are the same, on every rank. A collective."""
        if self._hvd.size() == 1:
            return arrays
        packed = np.concatenate([np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays])
        packed = self._call("broadcast", packed.dtype, name)(packed)
        ends = np.cumsum([array.nbytes for array in arrays])
        parts = np.split(packed, ends[:-1])
        return [part.view(array.dtype).reshape(array.shape) for part, array in zip(parts, arrays, strict=True)]

    def broadcast_object(self, value: Any, name: str) -> Any:
        """Returns rank 0's `value`, which must be representable in JSON, on every rank. A collective."""
        if self._hvd.size() == 1:
            return value
        text = np.frombuffer(json.dumps(value if self._hvd.rank() == 0 else None).encode(), np.uint8)
        length = self._call("broadcast", np.dtype(np.int64), f"{name}.length")(np.array([len(text)]))[0]
        text = text if self._hvd.rank() == 0 else np.zeros(length, np.uint8)
        return json.loads(self._call("broadcast", np.dtype(np.uint8), name)(text).tobytes())

    def barrier(self, name: str) -> None:
        """Waits until every rank has called this method. A collective."""
        self.all_sum(np.zeros(1, np.int32), f"barrier.{name}")

    def from_chief(self, work: Callable[[Callable[[str], None]], Any], name: str) -> Any:
        """Runs work on rank 0 while the other ranks wait, without a time limit if it reports progress. A collective.

        `work`: f(advanced), called on rank 0; returns a value that JSON can represent. To report progress, it calls
        `advanced(text)` with a text such as `12,000 rows`. As long as it does, `stall_timeout` ends no rank, and rank 0
        logs the text every 30 s, or every `stall_timeout` / 4 if that is shorter.

        Returns the result of `work`, on every rank.
        """
        if self._hvd.rank() != 0:
            while "result" not in (said := self.broadcast_object(None, name)):
                pass  # Rank 0 has reported progress.
            return said["result"]
        told = time.monotonic()

        def advanced(text: str) -> None:
            nonlocal told
            self._watchdog().progress()
            if time.monotonic() - told >= self._watchdog().tell_seconds:
                _log.info("%s", text)
                self.broadcast_object({"advanced": text}, name)
                told = time.monotonic()

        with self._watchdog().waiting(f"its own work in {name}"):
            result = work(advanced)
        return self.broadcast_object({"result": result}, name)["result"]

    def _make_call(self, kind: str, dtype: np.dtype, name: str) -> _Call:
        """Returns a function that runs one collective, in its own graph and session."""
        hvd, graph = self._hvd, tf.Graph()
        with graph.as_default(), tf.device("/cpu:0"):
            value, full_name = tf1.placeholder(dtype, [None] if kind == "gather" else None), f"{name}.{kind}"
            if kind == "sum":
                result = hvd.allreduce(value, op=hvd.Sum, name=full_name)
            elif kind == "gather":
                result = hvd.allgather(value, name=full_name)
            else:
                result = hvd.broadcast(value, 0, name=full_name)
        session = tf1.Session(graph=graph, config=self._session_config())

        def exchange(array: np.ndarray) -> np.ndarray:
            with self._watchdog().waiting(f"the other ranks in {name}"):
                return session.run(result, {value: array})

        return exchange
