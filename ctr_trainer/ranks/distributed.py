"""All code that touches Horovod: start, device pinning, learning rate, optimizer, broadcast, reductions of host values.

Every function that communicates is a collective: all ranks call it, in the same order, never inside a branch on the
rank. If some rank does not reach a collective, the job ends after the `stall_timeout` of `init`, and the message has
the name that the collective was given.
"""

import contextlib
import dataclasses
import functools
import importlib
import json
import math
import os
import secrets
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from ctr_trainer.graph_notes.batch_weight import WeighedOptimizer
from ctr_trainer.graph_notes.notes import notes
from ctr_trainer.processes import hardware
from ctr_trainer.processes.watchdog import Watchdog
from ctr_trainer.ranks import agreement, horovod_timeline, last_words
from ctr_trainer.ranks.agreement import Introduction, meeting
from ctr_trainer.ranks.device_config import config_proto
from ctr_trainer.ranks.notices import Notices, Placement

tf1 = tf.compat.v1
# Horovod defines its session hooks only where it finds the name that TensorFlow 2.16 dropped with tf.estimator.
tf.train.SessionRunHook = tf1.train.SessionRunHook

try:
    import horovod.tensorflow as hvd
except ImportError as error:
    raise ImportError(
        "Horovod with TensorFlow support is not installed; build it with "
        "`python -m ctr_trainer.installation.build_horovod`"
    ) from error
if not hasattr(hvd, "BroadcastGlobalVariablesHook"):  # It was imported before, and was not built by this package.
    hvd = importlib.reload(hvd)

_IDLE_CYCLE_MS = 20

_watchdog = None
_all_cores = None
_gpus_each = 1
_first_ranks: hvd.ProcessSet | None = None  # The first rank of each host.


def init(
    stall_timeout: float = 1800.0,
    pin_cores: bool = False,
    stall_warning: float = 0.0,
    timeline: str = "",
    core_shares: int = 0,
    steps_exchange: bool = True,
    flags: dict[str, str] | None = None,
    gpus_each: int = 1,
    deterministic: bool = False,
    sums_by_host: bool = False,
) -> None:
    """Starts Horovod; without `horovodrun` this process is rank 0 of 1. A collective.

    Args:
      stall_timeout: seconds after which a collective that some rank does not reach ends the job.
      pin_cores: keep each worker of a machine on its own share of the cores, see `hardware.pin_cores`.
      stall_warning: seconds after which a wait is named in the log; 0 for never.
      timeline: file that rank 0 writes Horovod's timeline to, a Chrome trace of each exchange; "" for none.
      core_shares: into how many shares the cores are divided; 0 for as many as the machine has workers.
      steps_exchange: whether steps wait for what Horovod exchanges. Where they do not, its thread looks for an exchange
        every 20 ms, where HOROVOD_CYCLE_TIME says nothing else: its threads take 3% of the core at 5 ms.
      flags: by name, what all ranks need alike.
      gpus_each: number of GPUs that each worker of a machine uses, if the machine has GPUs.
      deterministic: whether equal runs need equal sums, to the bit. Of more than two workers' tensors, Horovod adds
        those up together that come together, and the order of a sum depends on what it is fused with: so none is.
      sums_by_host: whether to make the process set of the first rank of each host, for `optimizer(between_hosts=True)`,
        if there are several hosts and one of them has several workers. Horovod negotiates for it in each cycle.

    Raises:
      UserError: the ranks do not reach each other, see `meeting`, or are not one job, see `agreement`.
    """
    global _watchdog, _all_cores, _gpus_each, _first_ranks
    _gpus_each = gpus_each
    if pin_cores:  # Before Horovod starts its threads, so that they stay on these cores too.
        local = [int(os.environ.get(f"HOROVOD_LOCAL_{what}", default)) for what, default in (("RANK", 0), ("SIZE", 1))]
        _all_cores = hardware.pin_cores(local[0], max(core_shares, local[1]))
    if timeline:
        horovod_timeline.prepare(timeline)
    if not steps_exchange:
        os.environ.setdefault("HOROVOD_CYCLE_TIME", str(_IDLE_CYCLE_MS))
    if deterministic and int(os.environ.get("HOROVOD_SIZE", "1")) > 2:
        os.environ["HOROVOD_FUSION_THRESHOLD"] = "0"
    # The watchdog warns of stalls in place of Horovod, and `LastWords` says that a connection is lost.
    os.environ.setdefault("HOROVOD_LOG_LEVEL", "fatal")
    placement = Placement.of_this_process()
    with meeting(Notices.of_this_job(), placement, os.environ.get("HOROVOD_GLOO_IFACE"), stall_timeout) as first_ranks:
        # Not added later: with HOROVOD_DYNAMIC_PROCESS_SETS all ranks would agree on their process sets in each cycle.
        if sums_by_host and 1 < len(first_ranks) < placement.size:
            _first_ranks = hvd.ProcessSet(first_ranks)
        hvd.init(process_sets=[_first_ranks] if _first_ranks else None)
    period = min(1.0, stall_timeout / 4, stall_warning / 4 or 1.0)
    speak = last_words.of_this_process().say
    _watchdog = Watchdog(f"rank {hvd.rank()}", stall_timeout, period, stall_warning, speak)
    if size() > 1:
        agreement.agree(functools.partial(_introductions, flags or {}))
        last_words.of_this_process().sign(broadcast_object(secrets.token_hex(), "secret_of_notices"))


def _introductions(flags):
    """-> the `Introduction` of each rank, of about the same moment."""
    barrier("introductions")
    own = Introduction.of_this_process(rank(), size() != local_size(), flags)
    line = json.dumps(dataclasses.asdict(own)) + "\n"
    lines = all_gather(np.frombuffer(line.encode(), np.uint8), "introductions").tobytes().decode()
    return [Introduction.parse(json.loads(line)) for line in lines.splitlines()]


def watchdog():
    """-> the `Watchdog` of this process. If `init` was not called, it is called now, with its defaults."""
    if _watchdog is None:
        init()
    return _watchdog


def rank():
    return hvd.rank()


def size():
    return hvd.size()


def local_rank():
    return hvd.local_rank()


def local_size():
    return hvd.local_size()


def cross_rank() -> int:
    """Returns the number of this host among the hosts that have a worker of this local rank."""
    return hvd.cross_rank()


def sums_by_host() -> bool:
    """Returns whether `init` has made the process set of the first rank of each host."""
    return _first_ranks is not None


def is_one_machine():
    """Whether a loopback address means the same to all ranks. A collective."""
    own = f"{hardware.machine_id()}\n".encode()
    return len(set(all_gather(np.frombuffer(own, np.uint8), "machines").tobytes().splitlines())) == 1


def is_chief():
    """-> whether this is rank 0, which alone writes checkpoints, summaries and exports."""
    return hvd.rank() == 0


def host_cores():
    """-> the cores of this host's workers together, if `init` has pinned this one to its share of them; else None."""
    return _all_cores


def service_cores(services, steps_wait):
    """-> the cores for services that this worker starts, if `init` has pinned it; else None.

    Where each step waits for all workers, the services get all cores, and so the time in which a worker waits. With two
    workers on two cores they are 1.02 to 1.08 times as fast as if the services left this worker's cores free. Else the
    services leave them free, since this worker also syncs the rows: that is 1.02 to 1.07 times as fast.

    Args:
      services: how many. If the other workers have fewer cores, the services get all cores.
      steps_wait: whether the workers exchange their gradients at each step.
    """
    if _all_cores is None or steps_wait:
        return _all_cores
    others = _all_cores - os.sched_getaffinity(0)
    return others if len(others) >= services else _all_cores


def session_config(threads: int = 0, precision: str = "none", given: tf1.ConfigProto | None = None) -> tf1.ConfigProto:
    """Returns the options of this process's sessions, see `device_config.config_proto`.

    Args:
      threads, precision: as for `config_proto`.
      given: more options, in whose place those of `config_proto` come; None for none.
    """
    gpus = len(tf.config.list_physical_devices("GPU"))
    own = config_proto(gpus, hvd.local_rank(), threads, precision, _gpus_each)
    options = tf1.ConfigProto()
    if given is not None:
        options.CopyFrom(given)
    options.MergeFrom(own)
    return options


def lr_scale(how, accumulation_steps=1):
    """-> float, the factor on a learning rate that was chosen for one worker's batch.

    Args:
      how: `linear`, the number of workers; `sqrt`, its square root; `none`, 1; `linear_batches` and
        `sqrt_batches`, the number of all batches of a step, workers times accumulation_steps, or its square root.
      accumulation_steps: batches of a worker per optimizer step.

    Source: Goyal et al., Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour, 2017, section 2.1 (`linear`).
    """
    batches = hvd.size() * (accumulation_steps if how.endswith("_batches") else 1)
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
      `hvd.DistributedOptimizer`.
    """
    compression = hvd.Compression.fp16 if fp16 else hvd.Compression.none
    weight = notes().batch_weight if op == "average" else None
    if weight is not None:
        op, inner = "sum", WeighedOptimizer(inner, weight, local, size())
    op = {"average": hvd.Average, "sum": hvd.Sum}[op]
    ranks = {"process_set": _first_ranks} if between_hosts else {}
    wrapped = hvd.DistributedOptimizer(inner, compression=compression, op=op, scale_local_gradients=False, **ranks)
    for tensor in local:
        wrapped.register_local_var(tensor)
    return wrapped


def allreduce(tensor, name):
    """-> the sum of all ranks' tensors, inside the graph, by Horovod. A collective.

    Args:
      tensor: its shape and dtype are the same on every rank.
      name: name of the reduction, the same on every rank.
    """
    return hvd.allreduce(tensor, op=hvd.Sum, name=name)


def broadcast_hook():
    """-> the hook that gives every rank the variables of rank 0 when the session starts."""
    return hvd.BroadcastGlobalVariablesHook(0)


@functools.cache
def _host_collective(kind, dtype, name, watched=True):
    """-> f(numpy array) -> numpy array: one collective in a graph and session of its own."""
    graph = tf.Graph()
    with graph.as_default(), tf.device("/cpu:0"):
        value = tf1.placeholder(dtype, None)
        if kind == "sum":
            result = hvd.allreduce(value, op=hvd.Sum, name=f"{name}.sum")
        elif kind == "gather":
            value.set_shape([None])
            result = hvd.allgather(value, name=f"{name}.gather")
        else:
            result = hvd.broadcast(value, 0, name=f"{name}.broadcast")
    config = session_config(threads=1)
    # Those beside the steps have a thread of their own: a step that waits for other ranks holds those of TensorFlow.
    config.use_per_session_threads = not watched
    session = tf1.Session(graph=graph, config=config)

    def exchange(array):
        with watchdog().waiting(f"the other ranks in {name}") if watched else contextlib.nullcontext():
            return session.run(result, {value: array})

    return exchange


def all_sum(array, name, watched=True):
    """-> the sum of all ranks' arrays, on every rank. A collective.

    Args:
      array: its shape and dtype are the same on every rank.
      name: name of this collective in the watchdog's messages, the same on every rank.
      watched: whether the watchdog watches the wait; False in a thread if its caller watches the wait for the thread.
    """
    array = np.asarray(array)
    return array if size() == 1 else _host_collective("sum", array.dtype, name, watched)(array)


def all_gather(array, name):
    """-> the arrays of all ranks one after another, in the order of the ranks, on every rank. A collective.

    Args:
      array: [n], with any n; its dtype is the same on every rank.
      name: as for `all_sum`.
    """
    array = np.asarray(array)
    return array if size() == 1 else _host_collective("gather", array.dtype, name)(array)


def broadcast_arrays(arrays, name):
    """-> list of rank 0's arrays, on every rank. A collective.

    Args:
      arrays: list; its length, shapes and dtypes are the same on every rank.
      name: as for `all_sum`.
    """
    if size() == 1:
        return arrays
    packed = np.concatenate([np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays])
    packed = _host_collective("broadcast", packed.dtype, name)(packed)
    ends = np.cumsum([array.nbytes for array in arrays])
    parts = np.split(packed, ends[:-1])
    return [part.view(array.dtype).reshape(array.shape) for part, array in zip(parts, arrays, strict=True)]


def broadcast_object(value, name):
    """-> rank 0's `value`, which JSON can hold, on every rank. A collective."""
    if size() == 1:
        return value
    text = np.frombuffer(json.dumps(value if is_chief() else None).encode(), np.uint8)
    length = _host_collective("broadcast", np.dtype(np.int64), f"{name}.length")(np.array([len(text)]))[0]
    text = text if is_chief() else np.zeros(length, np.uint8)
    return json.loads(_host_collective("broadcast", np.dtype(np.uint8), name)(text).tobytes())


def barrier(name):
    """Returns when every rank has called it. A collective."""
    all_sum(np.zeros(1, np.int32), f"barrier.{name}")
