"""The part `speed` of `model_quality.py`: the speed of sequence models relative to DeepFM, one worker on one core.

Each example has one history. The data is random: one of 20,000 users, one of 5,000 items, five more categories, and a
history of items whose length is exponential with the mean 0.45 L, at least 1 and at most L. DeepFM does not read the
history. All sides with the same number of rows train on the same rows, in turn. A ratio is computed per round, and its
median over the rounds is reported. SDIM with histories of 1,000 is compared with DIN and with SDIM on histories of 50.
"""

import argparse
import functools
import pathlib
import tempfile
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import sides

ROUNDS = 3
SPEC = """
name = "histories"
label = {column = "clicked"}
defaults = {dim = 16}
sparse = [
  {columns = ["user", "item", "C1", "C2", "C3", "C4", "C5"]},
  {name = "history", slot = "item", combiner = "none", max_length = LENGTH},
]
"""


class Side(NamedTuple):
    """A model on examples with histories of at most `length` values."""

    model: str
    length: int
    rows: int = 150_000


# The two sides whose speeds are divided, by the key of the ratio.
RATIOS = {
    "din_over_deepfm_speed": (Side("din", 20), Side("deepfm", 20)),
    "bst_over_deepfm_speed": (Side("bst", 20), Side("deepfm", 20)),
    "dien_over_deepfm_speed": (Side("dien", 20), Side("deepfm", 20)),
    "din_over_deepfm_speed_50": (Side("din", 50), Side("deepfm", 50)),
    "sdim_1000_over_din_50_speed": (Side("sdim", 1000, 20_000), Side("din", 50, 20_000)),
    "sdim_1000_over_sdim_50_speed": (Side("sdim", 1000, 20_000), Side("sdim", 50, 20_000)),
}


def measure(flags: argparse.Namespace) -> dict[str, float | None]:
    """Returns the ratios by their keys."""
    every = sorted({side for pair in RATIOS.values() for side in pair})
    with tempfile.TemporaryDirectory() as directory:
        work = pathlib.Path(directory)
        for length, rows in {(side.length, side.rows) for side in every}:
            data(work / f"{length}-{rows}", length, rows)
        measured = {str(side): functools.partial(examples_per_sec, work, side) for side in every}
        rates = sides.in_turn(measured, ROUNDS)
    return {key: sides.ratio(rates, str(one), str(other)) for key, (one, other) in RATIOS.items()}


def data(place: pathlib.Path, length: int, rows: int) -> None:
    """Writes the feature spec and `rows` converted rows."""
    draw = np.random.default_rng(1)
    lengths = np.clip(draw.exponential(0.45 * length, rows).astype(np.int32), 1, length)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int32)]).astype(np.int32)
    columns: dict[str, pa.Array] = {
        "clicked": pa.array((draw.random(rows) < 0.25).astype(np.int64)),
        "user": pa.array(draw.integers(0, 20_000, rows)),
        "item": pa.array(draw.zipf(1.3, rows) % 5000),
        "history": pa.ListArray.from_arrays(offsets, pa.array(draw.zipf(1.3, offsets[-1]) % 5000)),
    }
    columns |= {f"C{n}": pa.array(draw.integers(0, 10**n, rows)) for n in range(1, 6)}
    place.mkdir()
    pq.write_table(pa.table(columns), place / "rows.parquet")
    (place / "spec.toml").write_text(SPEC.replace("LENGTH", str(length)))
    paths = f"--input={place / 'rows.parquet'}", f"--feature_spec={place / 'spec.toml'}", f"--output={place / 'data'}"
    sides.call([*sides.COMMAND, "convert", "--format=parquet", *paths])


def examples_per_sec(work: pathlib.Path, side: Side) -> float:
    """Trains a model on core 0, and returns its examples per second."""
    flags = [f"--train_data={work / f'{side.length}-{side.rows}' / 'data'}", f"--model={side.model}"]
    flags += ["--threads=1", "--save_checkpoints_steps=0", "--eval_data=", "--epochs=1", "--recipe=none"]
    on_core_0 = ["taskset", "-c", "0", *sides.COMMAND, "train", *flags]
    return sides.trained(on_core_0, {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"})["examples_per_sec"]
