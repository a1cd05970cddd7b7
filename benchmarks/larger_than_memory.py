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
import functools
import mmap
import operator
import os
import pathlib
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import auc_changes
import jobs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import sides
import worker as w1
from scaling import ONE_THREAD, W1_FLAGS

from ctr_trainer.checkpoint.checkpoint import latest_checkpoint
from ctr_trainer.embedding.snapshot import snapshot
from ctr_trainer.embedding.table import rocks
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.settings.optimizers import RowSgd

BATCH_SIZE, READERS, BLOCK_BYTES, FILE_BYTES, READS = 1024, 16, 4096, 1 << 30, 2000
ROW_BYTES = 168  # Of a row of dim 16 with a linear weight and Adagrad in memory.
LIMIT_BYTES = 2 << 30  # TensorFlow needs about 1 GB of it.
ONE = tuple(ONE_THREAD.items())
EXACT = "--deterministic", "--batch_size=256", "--epochs=0"
STEPS_PER_KILL, MOST_SECONDS = 80, 1.5  # The most time from a new checkpoint to a kill.
LARGE = (
    *("--model=wide_deep", "--hidden_units=64", "--recipe=none", "--eval_data=", "--log_steps=1"),
    *("--row_dtype=int8", "--embedding_optimizer=rowwise_adagrad"),
)
LARGE_SPEC = 'name = "large"\nlabel = {column = "label"}\nsparse = [{columns = ["C1..C26"], dim = 16}]\n'
ON_DISK = re.compile(r"on disk: ([\d,]+) \(.* index ([\d.]+) MB\)")
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
    with demo() as given, tempfile.TemporaryDirectory(dir=flags.table_dir) as directory:
        own = [*sides.COMMAND, "train", *given, *EXACT, f"--max_steps={flags.exact_steps}"]
        sides.call([*own, f"--model_dir={directory}/memory"])
        sides.call([*own, *on_disk(flags, directory), f"--model_dir={directory}/disk"])
        one, other = contents(f"{directory}/memory"), contents(f"{directory}/disk")
        changed, copied = newest_bytes(f"{directory}/memory"), newest_bytes(f"{directory}/disk")
    return {
        "weights_different": different(one, other),
        "exact_steps": flags.exact_steps,
        "exact_rows": len(one),
        "checkpoint_bytes_over_changed_bytes": round(copied / changed, 3),
    }


def newest_bytes(model_dir: str) -> int:
    """Returns how many bytes the last checkpoint wrote for the tables, without the files that it linked."""
    last = latest_checkpoint(model_dir)
    assert last is not None
    own = [each for each in last.tables if each["snapshot"] == last.tables[-1]["snapshot"]]
    return sum(each["bytes"] for each in own if not each["file"].endswith(rocks.ROWS_FILE))


def checkpoints(flags: argparse.Namespace) -> dict[str, Any]:
    """Trains the demo with rows on disk, with and without checkpoints every 1,000 steps, in turn."""
    with demo() as given, tempfile.TemporaryDirectory(dir=flags.table_dir) as directory:
        own = [*sides.COMMAND, "train", *given, *on_disk(flags, directory), "--epochs=0", "--max_steps=3000"]

        def run(every: int) -> float:
            return sides.trained([*own, f"--save_checkpoints_steps={every}"])["examples_per_sec"]

        both = {"with": functools.partial(run, 1000), "without": functools.partial(run, 0)}
        found = sides.in_turn(both, flags.rounds)
    slower = statistics.median(map(operator.truediv, found["without"], found["with"]))
    return {"checkpoint_slowdown_percent": round(100 * (slower - 1), 1)}


def small_rows(flags: argparse.Namespace) -> dict[str, Any]:
    """Trains W1 with rows of float32 and of int8 in memory, in turn."""

    def run(dtype: str) -> float:
        own = (*W1_FLAGS, f"--row_dtype={dtype}", "--threads=1")
        return jobs.rate(Job(dtype, 1, own, flags.steps, 100, environment=ONE).run())

    kinds = {dtype: functools.partial(run, dtype) for dtype in ("float32", "int8")}
    found = sides.in_turn(kinds, flags.rounds)
    forms = {dtype: TableConfig("weights", (16, 1), (0.0, 0.0), RowSgd(), row_dtype=dtype).form for dtype in kinds}
    return {
        "int8_bytes_over_float32": round(forms["int8"].nbytes / forms["float32"].nbytes, 3),
        "int8_speed_over_float32": sides.ratio(found, "int8", "float32"),
    }


def auc(flags: argparse.Namespace) -> dict[str, Any]:
    """Compares the test AUCs of trainings with rows of int8 and of float32, by seed."""
    changes = auc_changes.auc_changes(["--row_dtype=int8"], flags.seeds)
    means = auc_changes.means(changes)
    return {
        "int8_auc_minus_float32": min(means.values()),
        "int8_auc_minus_float32_means": means,
        "auc_changes": changes,
    }


def on_disk(flags: argparse.Namespace, directory: str) -> tuple[str, ...]:
    """Returns flags with which a tenth of the demo's rows is in memory."""
    return f"--table_memory={flags.demo_rows * ROW_BYTES // 10}", f"--table_dir={directory}"


def contents(model_dir: str) -> dict[object, object]:
    """Returns the rows of the last checkpoint by table and key, and the checksums of its dense variables."""
    last = latest_checkpoint(model_dir)
    assert last is not None
    found: dict[object, object] = {each["file"]: each["crc32"] for each in last.dense if "data" in each["file"]}
    for config, keys, rows in snapshot.iterate(last.path, last.tables):
        found |= {(config.name, key): row.tobytes() for key, row in zip(keys.tolist(), rows, strict=True)}
    return found


def different(one: dict[object, object], other: dict[object, object]) -> int:
    return sum(one.get(key) != other.get(key) for key in one.keys() | other.keys())


def kills(flags: argparse.Namespace) -> dict[str, Any]:
    """Kills a training with rows on disk at random moments, resumes it, and compares it with one that is not killed."""
    drawn, killed = random.Random(0), 0
    with demo() as given, tempfile.TemporaryDirectory(dir=flags.table_dir) as directory:
        own = [*sides.COMMAND, "train", *given, *EXACT, *on_disk(flags, directory), "--save_checkpoints_steps=20"]
        own += [f"--max_steps={flags.kills * STEPS_PER_KILL}"]
        sides.call([*own, f"--model_dir={directory}/whole"])
        own += [f"--model_dir={directory}/killed"]
        killed_dir, log = f"{directory}/killed", pathlib.Path(directory, "log")
        while killed < flags.kills and kill_one(own, killed_dir, log, drawn.random() * MOST_SECONDS):
            killed += 1
            print(f"kill {killed} of {flags.kills} after step {saved(killed_dir)}", file=sys.stderr, flush=True)
        sides.call(own)
        one, other = contents(f"{directory}/whole"), contents(f"{directory}/killed")
    return {
        "kill_runs": killed,
        "rows_different": different(one, other),
        "rows_lost": len(one.keys() - other.keys()),
    }


def kill_one(command: Sequence[str], model_dir: str, log: pathlib.Path, seconds: float) -> bool:
    """Kills a training `seconds` after its next checkpoint; returns whether it had not yet ended by itself."""
    before = saved(model_dir)
    with sides.running(command, log) as process:
        sides.wait_until(lambda: saved(model_dir) > before, "a checkpoint", 300, process, log)
        time.sleep(seconds)
        return process.poll() is None


def saved(model_dir: str) -> int:
    """Returns the step of the last checkpoint; 0 without one."""
    last = latest_checkpoint(model_dir)
    return last.step if last else 0


def large(flags: argparse.Namespace) -> dict[str, Any]:
    """Trains `flags.large_rows` keys with int8 rows, each once; kills the training, resumes it and exports them."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=flags.table_dir) as directory:
        raw, count = f"{directory}/raw.parquet", flags.large_rows // w1.FIELDS
        label = pa.array(np.random.default_rng(0).integers(0, 2, count))
        columns = {f"C{number}": pa.array(np.arange(count)) for number in range(1, w1.FIELDS + 1)}
        pq.write_table(pa.table({"label": label, **columns}), raw)
        spec, data = pathlib.Path(directory, "large.toml"), f"{directory}/data"
        spec.write_text(LARGE_SPEC)
        own = "--format=parquet", f"--input={raw}", f"--feature_spec={spec}", f"--output={data}"
        sides.call([*sides.COMMAND, "convert", *own])
        half, model = -(-count // (2 * BATCH_SIZE)), f"{directory}/model"  # Steps.
        train = [*sides.COMMAND, "train", f"--train_data={data}", *LARGE, f"--batch_size={BATCH_SIZE}", "--epochs=0"]
        train += [f"--table_memory={flags.large_memory}", f"--table_dir={directory}/rows", f"--model_dir={model}"]
        train += [f"--save_checkpoints_steps={half}", f"--max_steps={3 * half}"]
        log, started = pathlib.Path(directory, "log"), time.monotonic()
        with sides.running(train, log) as process:
            sides.wait_until(lambda: saved(model) >= 2 * half, "the checkpoint of all rows", 7200, process, log)
            trained = time.monotonic() - started
        started = time.monotonic()
        with sides.running(train, log) as process:
            first = f"step {2 * half + 1} of"
            sides.wait_until(lambda: first in log.read_text(), "the first step", 600, process, log)
            restored = time.monotonic() - started
            sides.wait_until(lambda: ON_DISK.search(log.read_text()), "the rows on disk", 600, process, log)
        cold, index = ON_DISK.findall(log.read_text())[-1]
        last = latest_checkpoint(model)
        assert last is not None
        files = [file for file in pathlib.Path(last.path).rglob("*") if file.is_file()]
        linked = sum(file.stat().st_size for file in files if file.name.endswith(rocks.ROWS_FILE))
        copied = sum(file.stat().st_size for file in files) - linked
        sides.call([*sides.COMMAND, "publish", f"--model_dir={model}", f"--to={directory}/published"])
    return {
        "rows_trained": count * w1.FIELDS,
        "rows_trained_minutes": round((time.monotonic() - began) / 60, 1),
        "rows_trained_per_sec": round(count * w1.FIELDS / trained),
        "seconds_to_first_step_after_restore": round(restored, 1),
        "checkpoint_copied_bytes_per_row": round(copied / (count * w1.FIELDS), 2),
        "disk_bytes_per_row": round(linked / (count * w1.FIELDS), 1),
        "memory_bytes_per_cold_row": round(float(index) * 1e6 / int(cold.replace(",", "")), 2),
    }


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
EXACT_KEYS = "weights_different", "exact_steps", "exact_rows", "checkpoint_bytes_over_changed_bytes"
AUC_KEYS = "int8_auc_minus_float32", "int8_auc_minus_float32_means", "auc_changes"
LARGE_KEYS = (
    *("rows_trained", "rows_trained_minutes", "rows_trained_per_sec", "seconds_to_first_step_after_restore"),
    *("checkpoint_copied_bytes_per_row", "disk_bytes_per_row", "memory_bytes_per_cold_row"),
)
PARTS = {
    "speed": sides.Part("keys by Zipf(1.05), uniform keys, and the demo", KEYS, speed),
    "exact": sides.Part("the same bits as in memory", EXACT_KEYS, exact),
    "checkpoints": sides.Part("what checkpoints of the demo cost", ("checkpoint_slowdown_percent",), checkpoints),
    "int8": sides.Part("rows of 8 bits", ("int8_bytes_over_float32", "int8_speed_over_float32"), small_rows),
    "auc": sides.Part("the AUC of rows of 8 bits", AUC_KEYS, auc),
    "kills": sides.Part("kills of one training at random moments", ("kill_runs", "rows_different", "rows_lost"), kills),
    "large": sides.Part("many rows, killed, restored and exported", LARGE_KEYS, large),
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
    parser.add_argument("--seeds", type=sides.integers, default=[*range(1, 9)], help="seeds of the part auc, default 8")
    parser.add_argument("--kills", type=int, default=50, help="kills of the part kills")
    parser.add_argument("--large_rows", type=int, default=100_000_000, help="rows of the part large")
    parser.add_argument("--large_memory", default="640MiB", help="memory for these rows, by default a tenth of them")
    parser.add_argument("--table_dir", default=tempfile.gettempdir(), help="directory of the disk that is measured")
    sides.run_parts(PARTS, parser.parse_args())


if __name__ == "__main__":
    main()
