"""The public face of the ranks: start, numbers of the ranks, optimizer, and collectives on values of the host.

Every function that communicates is a collective: all ranks call it, in the same order, never inside a branch on the
rank. If some rank does not reach a collective, the job ends after the `stall_timeout` of `init`, and the message has
the name that the collective was given.
"""

import contextlib
import dataclasses
import functools
import json
import logging
import math
import os
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.graph_notes.batch_weight import WeighedOptimizer
from ctr_trainer.graph_notes.notes import notes
from ctr_trainer.processes import hardware
from ctr_trainer.processes.watchdog import Watchdog
from ctr_trainer.ranks import agreement, last_words
from ctr_trainer.ranks.agreement import Introduction, meeting
from ctr_trainer.ranks.communicator import array_collective, open_communicator
from ctr_trainer.ranks.device_config import config_proto
from ctr_trainer.ranks.notices import Notices, Placement

_IDLE_CYCLE_MS = 20
_log = logging.getLogger(__name__)

_ranks = open_communicator()
_watchdog: Watchdog | None = None
_all_cores: set[int] | None = None
_gpus_each = 1
_sums_by_host = False


def init(
    stall_timeout: float = 1800.0,
    pin_cores: bool = False,
    stall_warning: float = 0.0,
    core_shares: int = 0,
    steps_exchange: bool = True,
    flags: dict[str, str] | None = None,
    gpus_each: int = 1,
    deterministic: bool = False,
    sums_by_host: bool = False,
) -> None:
    """Connects the ranks; without `horovodrun` this process is rank 0 of 1. A collective.

    Args:
      stall_timeout: seconds after which a collective that some rank does not reach ends the job.
      pin_cores: whether to keep each worker of a machine on its own share of the cores, see `hardware.pin_cores`.
      stall_warning: seconds after which a wait is named in the log; 0 for never.
      core_shares: number of shares that the cores are divided into; 0 for as many as the machine has workers.
      steps_exchange: whether steps wait for what Horovod exchanges. If not, its thread looks for an exchange every
        20 ms, unless HOROVOD_CYCLE_TIME is set: at 5 ms its threads take 3% of a core.
      flags: values by name that must be equal on all ranks.
      gpus_each: number of GPUs that each worker of a machine uses, if the machine has GPUs.
      deterministic: whether equal runs need sums that are equal to the bit. With more than two workers, Horovod fuses
        tensors that arrive together, and the order of a sum depends on what it is fused with: then nothing is fused.
      sums_by_host: whether to make the process set of the first rank of each host, for `optimizer(between_hosts=True)`,
        if there are several hosts and one of them has several workers. Horovod negotiates for it in each cycle.

    Raises:
      UserError: the ranks do not reach each other, see `meeting`, or are not one job, see `agreement`; or there are
        several, and Horovod is not installed.
    """
    global _watchdog, _all_cores, _gpus_each, _sums_by_host
    _gpus_each, placement = gpus_each, Placement.of_this_process()
    _ranks.check(placement.size)
    if pin_cores:  # Before Horovod starts its threads, so that they stay on these cores too.
        here = placement.host_ranks
        _all_cores = hardware.pin_cores(placement.rank - here[0], max(core_shares, len(here)))
    if not steps_exchange:
        os.environ.setdefault("HOROVOD_CYCLE_TIME", str(_IDLE_CYCLE_MS))
    if deterministic and placement.size > 2:
        os.environ["HOROVOD_FUSION_THRESHOLD"] = "0"
    # The watchdog warns of stalls in place of Horovod, and `LastWords` says that a connection is lost.
    os.environ.setdefault("HOROVOD_LOG_LEVEL", "fatal")
    with meeting(Notices.of_this_job(), placement, os.environ.get("HOROVOD_GLOO_IFACE"), stall_timeout) as first_ranks:
        _sums_by_host = sums_by_host and 1 < len(first_ranks) < placement.size
        _ranks.connect(first_ranks if _sums_by_host else [])
    period = min(1.0, stall_timeout / 4, stall_warning / 4 or 1.0)
    speak = last_words.of_this_process().say
    _watchdog = Watchdog(f"rank {rank()}", stall_timeout, period, stall_warning, speak)
    if size() > 1:
        agreement.agree(functools.partial(_introductions, flags or {}))
        last_words.of_this_process().sign(broadcast_object(secrets.token_hex(), "secret_of_notices"))


def _introductions(flags: dict[str, str]) -> list[Introduction]:
    """Returns the `Introduction` of each rank, all made at about the same moment."""
    barrier("introductions")
    own = Introduction.of_this_process(rank(), size() != local_size(), flags)
    line = json.dumps(dataclasses.asdict(own)) + "\n"
    lines = all_gather(np.frombuffer(line.encode(), np.uint8), "introductions").tobytes().decode()
    return [Introduction.parse(json.loads(line)) for line in lines.splitlines()]


def watchdog() -> Watchdog:
    """Returns the `Watchdog` of this process. If `init` was not called, it is called now, with its defaults."""
    if _watchdog is None:
        init()
    assert _watchdog is not None
    return _watchdog


def rank() -> int:
    """Returns the rank of this process."""
    return _ranks.rank()


def size() -> int:
    """Returns the number of ranks of the job."""
    return _ranks.size()


def local_rank() -> int:
    """Returns the rank of this process among the processes of its host."""
    return _ranks.local_rank()


def local_size() -> int:
    """Returns the number of ranks on this host."""
    return _ranks.local_size()


def cross_rank() -> int:
    """Returns the number of this host among the hosts that have a worker of this local rank."""
    return _ranks.cross_rank()


def is_chief() -> bool:
    """Returns whether this is rank 0, which alone writes checkpoints, summaries and exports."""
    return _ranks.rank() == 0


def sums_by_host() -> bool:
    """Returns whether `init` has made the process set of the first rank of each host."""
    return _sums_by_host


def is_one_machine() -> bool:
    """Returns whether a loopback address means the same to all ranks. A collective."""
    own = f"{hardware.machine_id()}\n".encode()
    return len(set(all_gather(np.frombuffer(own, np.uint8), "machines").tobytes().splitlines())) == 1


def host_cores() -> set[int] | None:
    """Returns the cores of all workers of this host if `init` has pinned this worker to a share of them, or None."""
    return _all_cores


def service_cores(services: int, steps_wait: bool) -> set[int] | None:
    """Returns the cores for services that this worker starts if `init` has pinned it, or None.

    If each step waits for all workers, the services get all cores, and so use the time in which a worker waits. With
    two workers on two cores they are 1.02 to 1.08 times as fast as if the services left this worker's cores free. If
    steps do not wait, the services leave these cores free, since this worker also syncs the rows: that is 1.02 to 1.07
    times as fast.

    Args:
      services: number of services. If the other workers have fewer cores, the services get all cores.
      steps_wait: whether the workers exchange their gradients at each step.
    """
    if _all_cores is None or steps_wait:
        return _all_cores
    others = _all_cores - os.sched_getaffinity(0)
    return others if len(others) >= services else _all_cores


def session_config(threads: int = 0, precision: str = "none", given: tf1.ConfigProto | None = None) -> tf1.ConfigProto:
    """Returns the options of this process's sessions, see `device_config.config_proto`.

    Args:
      threads, precision: see `config_proto`.
      given: more options, which the options of `config_proto` override; None for none.
    """
    gpus = len(tf.config.list_physical_devices("GPU"))
    own = config_proto(gpus, local_rank(), threads, precision, _gpus_each)
    options = tf1.ConfigProto()
    if given is not None:
        options.CopyFrom(given)
    options.MergeFrom(own)
    return options


def lr_scale(how: str, accumulation_steps: int = 1) -> float:
    """Returns the factor on a learning rate that was chosen for one worker's batch.

    Args:
      how: `linear`, the number of workers; `sqrt`, its square root; `none`, 1; `linear_batches` and
        `sqrt_batches`, the number of all batches of a step, workers times accumulation_steps, or its square root.
      accumulation_steps: batches of a worker per optimizer step.

    Source: Goyal et al., Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour, 2017, section 2.1 (`linear`).
    """
    batches = size() * (accumulation_steps if how.endswith("_batches") else 1)
    return {"linear": float(batches), "sqrt": math.sqrt(batches), "none": 1.0}[how.removesuffix("_batches")]


def optimizer(
    inner: tf1.train.Optimizer,
    local: Sequence[tf.Tensor] = (),
    fp16: bool = False,
    op: str = "average",
    between_hosts: bool = False,
) -> tf1.train.Optimizer:
    """Makes a `hvd.DistributedOptimizer`, whose gradients are the average, or the sum, of all workers' gradients.

    The average counts all workers alike, whatever the numbers of their examples, unless shorter inputs are padded
    (`RunConfig.uneven_inputs`). For an average over examples, return `inner` itself: `EstimatorSpec(optimizer=...)`.

    Args:
      inner: a `tf.compat.v1` optimizer.
      local: tensors whose gradient stays this worker's own: the embedding rows, which the lookup service merges. They
        may stand in `compute_gradients(var_list=...)`.
      fp16: whether to send float16; the sum over workers is then in float16 too.
      op: `average` or `sum`.
      between_hosts: average or sum over the first rank of each host only; the other ranks keep their own gradients.
        `init(sums_by_host=True)` makes the process set for it.

    Returns:
      `hvd.DistributedOptimizer`; without Horovod, which one worker does not need, the inner optimizer.
    """
    weight = notes().batch_weight if op == "average" else None
    if weight is not None:
        op, inner = "sum", WeighedOptimizer(inner, weight, local, size())
    return _ranks.optimizer(inner, local, fp16, op, between_hosts)


def allreduce(tensor: tf.Tensor, name: str) -> tf.Tensor:
    """Returns the sum of all ranks' tensors, inside the graph. A collective.

    Args:
      tensor: its shape and dtype are the same on every rank.
      name: name of the reduction, the same on every rank.
    """
    return _ranks.allreduce(tensor, name)


def broadcast_hook() -> tf1.train.SessionRunHook:
    """Returns the hook that gives every rank the variables of rank 0 when the session starts."""
    return _ranks.broadcast_hook()


@functools.cache
def _on_arrays(kind: str, dtype: np.dtype, name: str, watched: bool = True) -> Callable[[np.ndarray], np.ndarray]:
    config = session_config(threads=1)
    # An unwatched collective runs while steps run: a step that waits for other ranks holds the threads of TensorFlow.
    config.use_per_session_threads = not watched
    run = array_collective(_ranks, kind, dtype, name, config)

    def exchange(array: np.ndarray) -> np.ndarray:
        with watchdog().waiting(f"the other ranks in {name}") if watched else contextlib.nullcontext():
            return run(array)

    return exchange


def all_sum(array: np.ndarray, name: str, watched: bool = True) -> np.ndarray:
    """Returns the sum of all ranks' arrays, on every rank. A collective.

    Args:
      array: its shape and dtype are the same on every rank.
      name: name of this collective in the watchdog's messages, the same on every rank.
      watched: whether the watchdog watches the wait; False in a thread if its caller watches the wait for the thread.
    """
    array = np.asarray(array)
    return array if size() == 1 else _on_arrays("sum", array.dtype, name, watched)(array)


def all_gather(array: np.ndarray, name: str) -> np.ndarray:
    """Returns the arrays of all ranks one after another, in the order of the ranks, on every rank. A collective.

    Args:
      array: [n], with any n; its dtype is the same on every rank.
      name: see `all_sum`.
    """
    array = np.asarray(array)
    return array if size() == 1 else _on_arrays("gather", array.dtype, name)(array)


def broadcast_arrays(arrays: list[np.ndarray], name: str) -> list[np.ndarray]:
    """Returns rank 0's arrays, on every rank. A collective.

    Args:
      arrays: their number, shapes and dtypes are the same on every rank.
      name: see `all_sum`.
    """
    if size() == 1:
        return arrays
    packed = np.concatenate([np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays])
    packed = _on_arrays("broadcast", packed.dtype, name)(packed)
    ends = np.cumsum([array.nbytes for array in arrays])
    parts = np.split(packed, ends[:-1])
    return [part.view(array.dtype).reshape(array.shape) for part, array in zip(parts, arrays, strict=True)]


def broadcast_object(value: Any, name: str) -> Any:
    """Returns rank 0's `value`, which must be representable in JSON, on every rank. A collective."""
    if size() == 1:
        return value
    text = np.frombuffer(json.dumps(value if is_chief() else None).encode(), np.uint8)
    length = _on_arrays("broadcast", np.dtype(np.int64), f"{name}.length")(np.array([len(text)]))[0]
    text = text if is_chief() else np.zeros(length, np.uint8)
    return json.loads(_on_arrays("broadcast", np.dtype(np.uint8), name)(text).tobytes())


def barrier(name: str) -> None:
    """Returns when every rank has called it. A collective."""
    all_sum(np.zeros(1, np.int32), f"barrier.{name}")


def from_chief(work: Callable[[Callable[[str], None]], Any], name: str) -> Any:
    """Has rank 0 do some work while the other ranks wait, for as long as it takes. A collective.

    Args:
      work: f(advanced), called on rank 0; returns what JSON can represent. It calls `advanced(text)`, such as
        `12,000 rows`, whenever it has advanced. As long as it does, the `stall_timeout` ends no rank's wait, and rank 0
        logs the text every 30 s.
      name: name of this wait in the watchdog's messages, the same on every rank.

    Returns:
      what `work` returned, on every rank.
    """
    if not is_chief():
        while "result" not in (said := broadcast_object(None, name)):
            pass  # Rank 0 has advanced.
        return said["result"]
    told = time.monotonic()

    def advanced(text: str) -> None:
        nonlocal told
        watchdog().progress()
        if time.monotonic() - told >= watchdog().tell_seconds:
            _log.info("%s", text)
            broadcast_object({"advanced": text}, name)
            told = time.monotonic()

    with watchdog().waiting(f"its own work in {name}"):
        result = work(advanced)
    return broadcast_object({"result": result}, name)["result"]
