"""Trains tables of ten times the rows that --table_memory holds, and compares this with tables in memory.

One worker trains W1's model: first each of --rows keys once, then, measured, keys drawn from Zipf(1.05) or uniformly;
and it trains the demo. A control group limits memory with the page cache, if this machine permits it. The disk's limit
is what 16 threads read in the same run, 4 KiB at random places without the page cache, over the rows that an example
needs from disk.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import mmap
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jobs
import numpy as np
import sides
import worker as w1
from scaling import ONE_THREAD, W1_FLAGS

from ctr_trainer.checkpoint.checkpoint import latest_checkpoint
from ctr_trainer.embedding.snapshot import snapshot

BATCH_SIZE, READERS, BLOCK_BYTES, FILE_BYTES, READS = 1024, 16, 4096, 1 << 30, 2000
ROW_BYTES = 168  # Of a row of dim 16 with a linear weight and Adagrad in memory.
LIMIT_BYTES = 2 << 30  # TensorFlow needs about 1 GB of it.
ONE = tuple(ONE_THREAD.items())
GROUPS = pathlib.Path("/sys/fs/cgroup")


@contextlib.contextmanager
def memory_limit(nbytes: int) -> Iterator[tuple[object, ...]]:
    """Yields the beginning of a command whose processes may use so much memory, page cache included; else ()."""
    version1 = (GROUPS / "memory").is_dir()
    group = (GROUPS / "memory" if version1 else GROUPS) / f"larger_than_memory_{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if version1 else "memory.max")).write_text(str(nbytes))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        print(f"control groups are not permitted here ({error}): the page cache is not limited", flush=True)
        yield ()
        return
    try:
        yield "sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"
    finally:
        sides.wait_until(lambda: not (group / "cgroup.procs").read_text(), f"the processes of {group}", 60)
        group.rmdir()


def random_reads_per_sec(directory: str) -> float:
    """Returns how many blocks the disk of a directory reads per second, at random and without the page cache."""
    file = pathlib.Path(directory, "random")
    if not file.exists():
        with file.open("wb") as out:
            for _ in range(FILE_BYTES >> 24):
                out.write(os.urandom(1 << 24))
            os.fsync(out.fileno())
    opened = os.open(file, os.O_RDONLY | os.O_DIRECT)

    def read(seed: int) -> None:
        block = mmap.mmap(-1, BLOCK_BYTES)  # Aligned, as O_DIRECT needs it.
        for at in np.random.default_rng(seed).integers(0, FILE_BYTES // BLOCK_BYTES, READS).tolist():
            os.preadv(opened, [block], at * BLOCK_BYTES)

    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(READERS) as threads:
        list(threads.map(read, range(READERS)))
    os.close(opened)
    return READERS * READS / (time.perf_counter() - began)


@dataclasses.dataclass(frozen=True)
class Job(jobs.Job):
    """A job of one worker, by a command that begins with `limited`."""

    limited: tuple[object, ...] = ()

    def launcher(self) -> tuple[object, ...]:
        return self.limited


def measured(flags: argparse.Namespace, job_flags: Sequence[str], warmup: int, nbytes: int) -> dict[str, Any]:
    """Returns the figures of a job with rows on disk, of `nbytes` in memory, against the same job in memory."""
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir=flags.table_dir))
        limited = stack.enter_context(memory_limit(LIMIT_BYTES))

        def run(*more: str) -> dict[str, Any]:
            own = (*job_flags, "--threads=1", *more)
            job = Job("job", 1, own, flags.steps, warmup, environment=ONE, limited=limited if more else ())
            return job.run()[0]

        three: dict[str, Callable[[], dict[str, Any]]] = {
            "memory": run,
            "disk": lambda: run(f"--table_memory={nbytes // 10}", f"--table_dir={directory}"),
            "reads": lambda: {"examples_per_sec": random_reads_per_sec(directory)},
        }
        found = sides.in_turn(three, flags.rounds, lambda result: f"{result['examples_per_sec']:,.0f}")
    rates = {name: [result["examples_per_sec"] for result in results] for name, results in found.items()}
    misses = [result["load"]["disk"]["found"] / result["examples_per_sec"] for result in found["disk"]]
    over = [rate * miss / reads for rate, miss, reads in zip(rates["disk"], misses, rates["reads"], strict=True)]
    return {
        "speed_over_in_memory": sides.ratio(rates, "disk", "memory"),
        "speed_over_disk_limit": round(statistics.median(over), 3),
        "examples_per_sec": round(statistics.median(rates["disk"])),
        "rows_from_disk_per_example": round(statistics.median(misses), 2),
        "random_reads_per_sec": round(statistics.median(rates["reads"])),
    }


def speed(flags: argparse.Namespace) -> dict[str, Any]:
    found = {}
    for name, exponent in (("", 1.05), ("_uniform", 0.0)):
        own = f"--batch_size={BATCH_SIZE}", f"--distinct={flags.rows}", f"--exponent={exponent}"
        warmup = -(-flags.rows // (BATCH_SIZE * w1.FIELDS)) + 40
        found[name] = measured(flags, [*W1_FLAGS, *own], warmup, flags.rows * ROW_BYTES)
    with demo() as given:
        found["_demo"] = measured(flags, given, flags.demo_warmup, flags.demo_rows * ROW_BYTES)
    return {f"{key}{name}": value for name, figures in found.items() for key, value in figures.items()}


def exact(flags: argparse.Namespace) -> dict[str, Any]:
    """Trains the demo in memory and on disk, and counts the rows and the files of dense variables that differ."""
    contents = []
    with demo() as given, tempfile.TemporaryDirectory(dir=flags.table_dir) as directory:
        disk = f"--table_memory={flags.demo_rows * ROW_BYTES // 10}", f"--table_dir={directory}"
        own = "--deterministic", "--batch_size=256", "--epochs=0", f"--max_steps={flags.exact_steps}"
        for name, more in (("memory", ()), ("disk", disk)):
            sides.call([*sides.COMMAND, "train", *given, *own, *more, f"--model_dir={directory}/{name}"])
            last = latest_checkpoint(f"{directory}/{name}")
            assert last is not None
            found: dict[object, object] = {each["file"]: each["crc32"] for each in last.dense if "data" in each["file"]}
            for config, keys, rows in snapshot.iterate(last.path, last.tables):
                found |= {(config.name, key): row.tobytes() for key, row in zip(keys.tolist(), rows, strict=True)}
            contents.append(found)
    one, other = contents
    different = sum(one.get(key) != other.get(key) for key in one.keys() | other.keys())
    return {"weights_different": different, "exact_steps": flags.exact_steps, "exact_rows": len(one)}


@contextlib.contextmanager
def demo() -> Iterator[Sequence[str]]:
    """Makes the demo's data, and yields flags to train it."""
    with tempfile.TemporaryDirectory() as directory:
        sides.make_synthetic(directory)
        yield sides.DEMO, f"--train_data={directory}/train", "--eval_data="


FIGURES = (
    *("speed_over_in_memory", "speed_over_disk_limit", "examples_per_sec"),
    *("rows_from_disk_per_example", "random_reads_per_sec"),
)
KEYS = tuple(f"{key}{name}" for name in ("", "_uniform", "_demo") for key in FIGURES)
PARTS = {
    "speed": sides.Part("keys by Zipf(1.05), uniform keys, and the demo", KEYS, speed),
    "exact": sides.Part("the same bits as in memory", ("weights_different", "exact_steps", "exact_rows"), exact),
}


def main() -> None:
    parser = sides.parser(__doc__)
    sides.add_parts(parser, PARTS, [*PARTS])
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all sides, in turn")
    parser.add_argument("--steps", type=int, default=200, help="steps measured in each run")
    parser.add_argument("--rows", type=int, default=5_000_000, help="keys of the part speed")
    parser.add_argument("--demo_rows", type=int, default=390_000, help="rows of the demo after the measured steps")
    parser.add_argument("--demo_warmup", type=int, default=200, help="steps of the demo before the measured ones")
    parser.add_argument("--exact_steps", type=int, default=10_000, help="steps of the part exact")
    parser.add_argument("--table_dir", default=tempfile.gettempdir(), help="directory of the disk that is measured")
    sides.run_parts(PARTS, parser.parse_args())


if __name__ == "__main__":
    main()
