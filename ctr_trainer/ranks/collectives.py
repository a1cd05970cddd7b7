"""Collectives on NumPy arrays and JSON values, for what the ranks agree on outside of their graphs."""

import contextlib
import functools
import json
import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.ranks.communicator import Communicator
from ctr_trainer.system.processes.watchdog import Watchdog

_log = logging.getLogger(__name__)


class Collectives:
    """Collectives on values of the host; `ctr_trainer.ranks.distributed` has its methods as functions.

    Args:
      ranks: connects the ranks.
      watchdog: f() -> the `Watchdog` of this process.
      session_config: f() -> the options of a session with one thread.
    """

    def __init__(
        self, ranks: Communicator, watchdog: Callable[[], Watchdog], session_config: Callable[[], tf1.ConfigProto]
    ) -> None:
        self._ranks, self._watchdog, self._session_config = ranks, watchdog, session_config
        self._call = functools.cache(self._make_call)

    def all_sum(self, array: np.ndarray, name: str, watched: bool = True) -> np.ndarray:
        """Returns the sum of all ranks' arrays, on every rank. A collective.

        Args:
          array: its shape and dtype are the same on every rank.
          name: name of this collective in the watchdog's messages, the same on every rank.
          watched: whether the watchdog watches the wait; False in a thread whose caller watches the wait for it.
        """
        array = np.asarray(array)
        return array if self._ranks.size() == 1 else self._call("sum", array.dtype, name, watched)(array)

    def all_gather(self, array: np.ndarray, name: str) -> np.ndarray:
        """Returns the arrays of all ranks one after another, in the order of the ranks, on every rank. A collective.

        Args:
          array: [n], with any n; its dtype is the same on every rank.
          name: see `all_sum`.
        """
        array = np.asarray(array)
        return array if self._ranks.size() == 1 else self._call("gather", array.dtype, name)(array)

    def broadcast_arrays(self, arrays: list[np.ndarray], name: str) -> list[np.ndarray]:
        """Returns rank 0's arrays, on every rank. A collective.

        Args:
          arrays: their number, shapes and dtypes are the same on every rank.
          name: see `all_sum`.
        """
        if self._ranks.size() == 1:
            return arrays
        packed = np.concatenate([np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays])
        packed = self._call("broadcast", packed.dtype, name)(packed)
        ends = np.cumsum([array.nbytes for array in arrays])
        parts = np.split(packed, ends[:-1])
        return [part.view(array.dtype).reshape(array.shape) for part, array in zip(parts, arrays, strict=True)]

    def broadcast_object(self, value: Any, name: str) -> Any:
        """Returns rank 0's `value`, which must be representable in JSON, on every rank. A collective."""
        if self._ranks.size() == 1:
            return value
        text = np.frombuffer(json.dumps(value if self._ranks.rank() == 0 else None).encode(), np.uint8)
        length = self._call("broadcast", np.dtype(np.int64), f"{name}.length")(np.array([len(text)]))[0]
        text = text if self._ranks.rank() == 0 else np.zeros(length, np.uint8)
        return json.loads(self._call("broadcast", np.dtype(np.uint8), name)(text).tobytes())

    def barrier(self, name: str) -> None:
        """Returns when every rank has called it. A collective."""
        self.all_sum(np.zeros(1, np.int32), f"barrier.{name}")

    def from_chief(self, work: Callable[[Callable[[str], None]], Any], name: str) -> Any:
        """Has rank 0 do some work while the other ranks wait, for as long as it takes. A collective.

        Args:
          work: f(advanced), called on rank 0; returns what JSON can represent. It calls `advanced(text)`, such as
            `12,000 rows`, whenever it has advanced. As long as it does, the `stall_timeout` ends no rank's wait, and
            rank 0 logs the text every 30 s.
          name: name of this wait in the watchdog's messages, the same on every rank.

        Returns:
          what `work` returned, on every rank.
        """
        if self._ranks.rank() != 0:
            while "result" not in (said := self.broadcast_object(None, name)):
                pass  # Rank 0 has advanced.
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

    def _make_call(
        self, kind: str, dtype: np.dtype, name: str, watched: bool = True
    ) -> Callable[[np.ndarray], np.ndarray]:
        """Returns a function that runs one collective, in a graph and session of its own."""
        ranks, graph = self._ranks, tf.Graph()
        with graph.as_default(), tf.device("/cpu:0"):
            value = tf1.placeholder(dtype, [None] if kind == "gather" else None)
            call = {"sum": ranks.allreduce, "gather": ranks.allgather, "broadcast": ranks.broadcast}[kind]
            result = call(value, f"{name}.{kind}")
        config = self._session_config()
        # An unwatched collective runs while steps run: a step that waits for other ranks holds TensorFlow's threads.
        config.use_per_session_threads = not watched
        session = tf1.Session(graph=graph, config=config)

        def exchange(array: np.ndarray) -> np.ndarray:
            with self._watchdog().waiting(f"the other ranks in {name}") if watched else contextlib.nullcontext():
                return session.run(result, {value: array})

        return exchange
