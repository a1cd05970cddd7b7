"""The public interface of the ranks: start, rank and size, optimizer, and collectives.

Every function that communicates is a collective: all ranks must call it, in the same order, and never inside a branch
on the rank. If a rank does not reach a collective, the job ends after the `stall_timeout` of `init`, and the message
names the collective.
"""

import functools
import json
import logging
import math
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.ranks.agreement import meeting
from ctr_trainer.ranks.endings import report
from ctr_trainer.ranks.horovod import OneWorker, config_proto, import_horovod
from ctr_trainer.ranks.notices import Notices, Placement
from ctr_trainer.system.processes import hardware
from ctr_trainer.system.processes.child import default_environment
from ctr_trainer.system.processes.waiting import Watchdog

_IDLE_CYCLE_MS = 20
_log = logging.getLogger(__name__)

_hvd = import_horovod()
_watchdog: Watchdog | None = None
_all_cores: set[int] | None = None
_gpus_each = 1
_first_ranks: Any = None  # The process set of the first rank of each host, if `init` has made it.


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
    """Connects the ranks; without `horovodrun`, this process is rank 0 of 1. A collective.

    Args:
      stall_timeout: seconds after which the job ends if a rank does not reach a collective, or a command's step hangs.
      pin_cores: whether to pin each worker to its own share of the machine's cores, see `hardware.pin_cores`.
      stall_warning: seconds after which the log reports a wait; 0 for never.
      core_shares: number of shares that the cores are divided into, at least one per worker of the machine.
      steps_exchange: whether steps wait for exchanges by Horovod. If not, Horovod's cycle time is 20 ms, unless
        HOROVOD_CYCLE_TIME is set, because Horovod's threads use 3% of a core at 5 ms.
      flags: settings, name -> value, that must be equal on all ranks.
      gpus_each: number of GPUs that each worker of a machine uses, if the machine has GPUs.
      deterministic: whether identical runs must compute bit-identical sums. With more than two workers, the order of a
        sum depends on which tensors Horovod fuses, so tensor fusion is disabled.
      sums_by_host: whether to create the process set of each host's first rank, for `allreduce(of_first_ranks=True)`.
        It is created only if there are several hosts and one of them has several workers. Horovod negotiates for it
        in each cycle.

    Raises:
      UserError: the ranks cannot reach each other, or are inconsistent, see `meeting`; or there are
        several ranks, and Horovod is not installed.
    """
    global _watchdog, _all_cores, _gpus_each, _first_ranks
    _gpus_each, placement = gpus_each, Placement.of_this_process()
    if isinstance(_hvd, OneWorker):
        _hvd.check(placement.size)
    if pin_cores:  # Pin before Horovod starts its threads, so that they run on these cores as well.
        here = placement.host_ranks
        _all_cores = hardware.pin_cores(placement.rank - here[0], max(core_shares, len(here)))
    if deterministic and placement.size > 2:
        os.environ["HOROVOD_FUSION_THRESHOLD"] = "0"
    # The watchdog, not Horovod, warns about stalls, and `EndReport` reports lost connections.
    variables = {"HOROVOD_LOG_LEVEL": "fatal"}
    if not steps_exchange:
        variables["HOROVOD_CYCLE_TIME"] = str(_IDLE_CYCLE_MS)
    notices, interface = Notices.of_this_job(), os.environ.get("HOROVOD_GLOO_IFACE")
    with meeting(notices, placement, interface, stall_timeout, flags or {}) as first_ranks:
        # Adding the set later would need HOROVOD_DYNAMIC_PROCESS_SETS, with which all ranks negotiate process sets in
        # each cycle.
        has_set = sums_by_host and 1 < len(first_ranks) < placement.size
        _first_ranks = _hvd.ProcessSet(first_ranks) if has_set else None
        with default_environment(variables):  # Horovod reads them here; a job that a notebook starts must not.
            _hvd.init(process_sets=[_first_ranks] if has_set else None)
    period = min(1.0, stall_timeout / 4, stall_warning / 4 or 1.0)

    def speak(text: str) -> None:
        report.running().say(text)  # The `run` of a program may begin after `init`.

    if _watchdog is not None:
        _watchdog.close()

    def ends() -> bool:  # A lone worker in a notebook waits for no rank: its user may have stopped it in a debugger.
        return size() > 1 or report.has_run()

    _watchdog = Watchdog(f"rank {rank()}", stall_timeout, period, stall_warning, speak, ends)


def watchdog() -> Watchdog:
    """Returns the `Watchdog` of this process. Calls `init` with its defaults if `init` was not called before."""
    if _watchdog is None:
        init()
    assert _watchdog is not None
    return _watchdog


def rank() -> int:
    """Returns the rank of this process."""
    return _hvd.rank()


def size() -> int:
    """Returns the number of ranks of the job."""
    return _hvd.size()


def local_rank() -> int:
    """Returns the rank of this process among the processes of its host."""
    return _hvd.local_rank()


def local_size() -> int:
    """Returns the number of ranks on this host."""
    return _hvd.local_size()


def is_chief() -> bool:
    """Whether this is rank 0, which alone writes checkpoints, summaries and exports."""
    return rank() == 0


def sums_by_host() -> bool:
    """Whether `init` has made the process set of the first rank of each host."""
    return _first_ranks is not None


def hosts() -> int:
    """Returns the number of hosts of the job. A collective."""
    return int(all_sum(np.asarray(local_rank() == 0, np.int64), "hosts"))


def is_one_machine() -> bool:
    """Whether all ranks are on one machine, so that they can connect over loopback. A collective."""
    own = f"{hardware.machine_id() or socket.gethostname()}\n".encode()
    return len(set(all_gather(np.frombuffer(own, np.uint8), "machines").tobytes().splitlines())) == 1


def host_cores() -> set[int] | None:
    """Returns the cores of all workers of this host if `init` pinned this worker to a share of them; otherwise None."""
    return _all_cores


def service_cores(services: int, steps_wait: bool) -> set[int] | None:
    """Returns the cores for services that this worker starts if `init` has pinned this worker; otherwise None.

    Without `steps_wait`, the services do not get this worker's cores, because this worker also syncs the rows, unless
    the other workers have too few. Either choice makes training 1.02 to 1.08 times as fast.

    Args:
      services: number of services.
      steps_wait: whether each step waits for all workers, so that the services can run meanwhile.
    """
    if _all_cores is None or steps_wait:
        return _all_cores
    others = _all_cores - os.sched_getaffinity(0)
    return others if len(others) >= services else _all_cores


def session_config(threads: int = 0, precision: str = "none", given: tf1.ConfigProto | None = None) -> tf1.ConfigProto:
    """Returns the options of this process's sessions, see `config_proto`, which override the options `given`."""
    gpus = len(tf.config.list_physical_devices("GPU"))
    own = config_proto(gpus, local_rank(), threads, precision, _gpus_each)
    options = tf1.ConfigProto()
    if given is not None:
        options.CopyFrom(given)
    options.MergeFrom(own)
    return options


def lr_scale(how: str, accumulation_steps: int = 1) -> float:
    """Returns the factor for a learning rate that was chosen for the batch of one worker.

    Args:
      how: `linear` for the number of workers; `sqrt` for its square root; `none` for 1; `linear_batches` for the number
        of batches per optimizer step, workers times `accumulation_steps`; `sqrt_batches` for its square root.
      accumulation_steps: number of batches of each worker per optimizer step.

    Source: Goyal et al., Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour, 2017, section 2.1 (`linear`).
    """
    batches = size() * (accumulation_steps if how.endswith("_batches") else 1)
    return {"linear": float(batches), "sqrt": math.sqrt(batches), "none": 1.0}[how.removesuffix("_batches")]


def optimizer(inner: tf1.train.Optimizer, fp16: bool = False, op: str = "average") -> tf1.train.Optimizer:
    """Makes a `hvd.DistributedOptimizer`, whose gradients are the average, or the sum, of all workers' gradients.

    The average weights all workers equally, regardless of their numbers of examples. For an average over examples,
    return `inner` itself: `EstimatorSpec(optimizer=...)`. Without Horovod, this function returns `inner`.

    Args:
      inner: a `tf.compat.v1` optimizer.
      fp16: whether to send float16; the sum over workers is then in float16 as well.
      op: `average` or `sum`.
    """
    if isinstance(_hvd, OneWorker):
        return inner
    return _hvd.DistributedOptimizer(
        inner,
        compression=_hvd.Compression.fp16 if fp16 else _hvd.Compression.none,
        op={"average": _hvd.Average, "sum": _hvd.Sum}[op],
    )


def allreduce(tensor: tf.Tensor, name: str, of_first_ranks: bool = False) -> tf.Tensor:
    """Returns the sum of all ranks' tensors, inside the graph. A collective.

    Args:
      tensor: tensor with the same shape and dtype on every rank.
      name: name of the reduction, the same on every rank.
      of_first_ranks: whether only the first rank of each host takes part. This needs `init(sums_by_host=True)`.
    """
    return _hvd.allreduce(tensor, op=_hvd.Sum, name=name, **({"process_set": _first_ranks} if of_first_ranks else {}))


def broadcast_hook() -> tf1.train.SessionRunHook:
    """Returns the hook that broadcasts the variables of rank 0 when the session starts."""
    return tf1.train.SessionRunHook() if isinstance(_hvd, OneWorker) else _hvd.BroadcastGlobalVariablesHook(0)


def all_sum(array: np.ndarray, name: str) -> np.ndarray:
    """Returns the sum of all ranks' arrays, on every rank. A collective.

    Args:
      array: with the same shape and dtype on every rank.
      name: for the watchdog's messages, the same on every rank.
    """
    array = np.asarray(array)
    return array if _hvd.size() == 1 else _call("sum", array.dtype, name)(array)


def all_gather(array: np.ndarray, name: str) -> np.ndarray:
    """Returns the concatenated arrays [n] of all ranks, which may have different n, on every rank. A collective."""
    array = np.asarray(array)
    return array if _hvd.size() == 1 else _call("gather", array.dtype, name)(array)


def broadcast_arrays(arrays: list[np.ndarray], name: str) -> list[np.ndarray]:
    """Returns rank 0's arrays, whose number, shapes and dtypes are the same, on every rank. A collective."""
    if _hvd.size() == 1:
        return arrays
    packed = np.concatenate([np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays])
    packed = _call("broadcast", packed.dtype, name)(packed)
    ends = np.cumsum([array.nbytes for array in arrays])
    parts = np.split(packed, ends[:-1])
    return [part.view(array.dtype).reshape(array.shape) for part, array in zip(parts, arrays, strict=True)]


def broadcast_object(value: Any, name: str) -> Any:
    """Returns rank 0's `value`, which must be representable in JSON, on every rank. A collective."""
    if _hvd.size() == 1:
        return value
    text = np.frombuffer(json.dumps(value if _hvd.rank() == 0 else None).encode(), np.uint8)
    length = _call("broadcast", np.dtype(np.int64), f"{name}.length")(np.array([len(text)]))[0]
    text = text if _hvd.rank() == 0 else np.zeros(length, np.uint8)
    return json.loads(_call("broadcast", np.dtype(np.uint8), name)(text).tobytes())


def barrier(name: str) -> None:
    """Waits until every rank has called this function. A collective."""
    all_sum(np.zeros(1, np.int32), f"barrier.{name}")


def from_chief(work: Callable[[Callable[[str], None]], Any], name: str) -> Any:
    """Runs work on rank 0 while the other ranks wait, without a time limit if it reports progress. A collective.

    `work`: f(advanced), called on rank 0; returns a value that JSON can represent. To report progress, it calls
    `advanced(text)` with a text such as `12,000 rows`. As long as it does, `stall_timeout` ends no rank, and rank 0
    logs the text every 30 s, or every `stall_timeout` / 4 if that is shorter.

    Returns the result of `work`, on every rank.
    """
    if _hvd.rank() != 0:
        while "result" not in (said := broadcast_object(None, name)):
            watchdog().progress()  # Rank 0 has reported its own.
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


@functools.cache
def _call(kind: str, dtype: np.dtype, name: str) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function that runs one collective, in its own graph and session."""
    graph = tf.Graph()
    with graph.as_default(), tf.device("/cpu:0"):
        value, full_name = tf1.placeholder(dtype, [None] if kind == "gather" else None), f"{name}.{kind}"
        if kind == "sum":
            result = _hvd.allreduce(value, op=_hvd.Sum, name=full_name)
        elif kind == "gather":
            result = _hvd.allgather(value, name=full_name)
        else:
            result = _hvd.broadcast(value, 0, name=full_name)
    session = tf1.Session(graph=graph, config=session_config(threads=1))

    def exchange(array: np.ndarray) -> np.ndarray:
        with watchdog().waiting(f"the other ranks in {name}"):
            return session.run(result, {value: array})

    return exchange
