"""Where the time of a lookup of embedding rows goes, in a real job: W1 with a service. The last line is JSON.

Each part of a lookup is measured by its time on the clock, its CPU time, its page faults, how often another thread took
the core from it (`preempted`), and how often it waited by itself (`waited`: for the lock of the rows, or for Python's
lock between the threads of a process). What is on the clock and not in the CPU time is waiting.

    lookup     the whole: all parts below, of one batch
    wait       for the lock of the rows, with which the workers of a host take turns
    index      from key to slot, the lock not counted, and the making of new rows
    take       the copy of the batch's distinct rows out of the table
    gather     from that copy to the tensors that TensorFlow is fed

Examples: python benchmarks/lookup.py
          python benchmarks/lookup.py --workers 1
          python benchmarks/lookup.py --avx2 --without_huge_pages
"""

import argparse
import collections
import ctypes
import json
import os
import resource
import statistics
import sys
import tempfile
import time

from sides import Side

_PR_SET_THP_DISABLE = 41
# Numba's and oneDNN's code for a processor without AVX-512, such as an EPYC of before 2022.
_AVX2 = (("NUMBA_CPU_NAME", "haswell"), ("NUMBA_CPU_FEATURES", "+avx2,+fma"), ("ONEDNN_MAX_CPU_ISA", "AVX2"))
_TITLES = ("ms", "CPU ms", "faults", "preempted", "waited", "ms P50", "ms P95")
_MEASURED = "CTR_TRAINER_LOOKUP_FIRST"
Cost = collections.namedtuple("Cost", "ms cpu_ms faults preemptions waits")
_NOTHING = [0] * len(Cost._fields)


class Meter:
    """Adds up what parts of a lookup cost; one for a process, of its training thread.

    Args:
      skipped: lookups at the start that do not count.
    """

    def __init__(self, skipped: int) -> None:
        self._skipped, self._lookups, self._now = skipped, collections.defaultdict(list), {}

    def part(self, owner: type, method: str, name: str) -> None:
        """Measures all calls of a method as a part of the lookup that is under way."""
        called = getattr(owner, method)

        def measured(*arguments, **settings):
            before = _clocks()
            try:
                return called(*arguments, **settings)
            finally:
                self._now[name] = [a + b for a, b in zip(self._now.get(name, _NOTHING), _since(before), strict=True)]

        setattr(owner, method, measured)

    def whole(self, owner: type, method: str) -> None:
        """Measures each call of a method as one lookup."""
        called, count = getattr(owner, method), 0

        def measured(*arguments, **settings):
            nonlocal count
            self._now, before = {}, _clocks()
            found = called(*arguments, **settings)
            self._now["lookup"], count = _since(before), count + 1
            if count > self._skipped:
                self._add()
            return found

        setattr(owner, method, measured)

    def _add(self) -> None:
        """Adds the lookup that has ended; the index's lock is taken within the index, the copy's around the copy."""
        found = {name: self._now.get(name, _NOTHING) for name in ("lookup", "wait", "find", "take", "gather")}
        within = [a - b for a, b in zip(found.pop("find"), self._now.get("wait", _NOTHING), strict=True)]
        found["index"] = [max(each, 0) for each in within]
        for name, each in found.items():
            self._lookups[name].append(Cost(*each))

    def figures(self) -> dict[str, dict[str, float]]:
        """Returns, by part, the means over the lookups, and the median and the 95th percentile of the time."""
        return {
            name: {
                **{field: round(statistics.fmean(getattr(c, field) for c in costs), 3) for field in Cost._fields},
                "ms_p50": round(statistics.median(c.ms for c in costs), 3),
                "ms_p95": round(sorted(c.ms for c in costs)[int(0.95 * len(costs))], 3),
            }
            for name, costs in self._lookups.items()
        }


def _clocks() -> tuple[float, float, int, int, int]:
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return 1e3 * time.perf_counter(), 1e3 * time.thread_time(), used.ru_minflt, used.ru_nivcsw, used.ru_nvcsw


def _since(before: tuple[float, float, int, int, int]) -> list[float]:
    return [now - then for now, then in zip(_clocks(), before, strict=True)]


def worker() -> None:
    """Runs `ours.py` with its lookups measured; its line of JSON is followed by one of this."""
    import ours

    from ctr_trainer.embedding.memory.row_lock import RowLock
    from ctr_trainer.embedding.worker.host_rows import HostRows
    from ctr_trainer.embedding.worker.lookup import Lookup
    from ctr_trainer.estimator.embeddings import Embeddings

    meter = Meter(int(os.environ[_MEASURED]))
    meter.part(RowLock, "_take", "wait")
    meter.part(HostRows, "find_or_create", "find")
    meter.part(Lookup, "take", "take")
    meter.part(Lookup, "gather", "gather")
    meter.whole(Embeddings, "look_up")
    ours.main()
    print(json.dumps({"examples_per_sec": 0.0, "lookup": meter.figures()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, help="each on a core of its own, with a service beside them")
    parser.add_argument("--steps", type=int, default=300, help="measured, after a warm-up of 100")
    parser.add_argument("--avx2", action="store_true", help="compile kernels for a processor without AVX-512")
    parser.add_argument("--without_huge_pages", action="store_true", help="switch transparent huge pages off")
    flags = parser.parse_args()
    if flags.without_huge_pages and ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0):
        raise SystemExit(f"the kernel does not switch huge pages off: {os.strerror(ctypes.get_errno())}")
    cores = ",".join(map(str, range(flags.workers)))
    with tempfile.TemporaryDirectory() as kernels:
        avx2 = (*_AVX2, ("NUMBA_CACHE_DIR", kernels)) if flags.avx2 else ()
        arguments = (f"--steps={flags.steps}", "--warmup=100", f"--cores={cores}", "--prefetch_batches=4")
        if flags.workers == 1:
            arguments += ("--service_core=0",)
        environment = ((_MEASURED, "100"), *avx2)
        # The first run compiles the kernels.
        for _ in range(2 if flags.avx2 else 1):
            found = Side("lookup.py", ("--as_worker", *arguments), flags.workers, environment, lines=2).run()
    ranks = [each["lookup"] for each in found if "lookup" in each]
    for number, rank in enumerate(ranks):
        print(f"rank {number}, means per lookup")
        print(f"{'':>8}" + "".join(f"{title:>12}" for title in _TITLES))
        for name, cost in rank.items():
            print(f"{name:>8}" + "".join(f"{value:>12}" for value in cost.values()))
    rates = [round(each["examples_per_sec"]) for each in found if "lookup" not in each]
    print(json.dumps({"ranks": ranks, "examples_per_sec": rates, "settings": vars(flags)}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as_worker"]:
        del sys.argv[1]
        worker()
    else:
        main()
