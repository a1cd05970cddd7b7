"""Speed of sequence models over DeepFM's, for `model_quality.py`: one worker on one core, one history per example.

The data are drawn at random: a user of 20,000, an item of 5,000, five more categories, and a history of items whose
length is exponential with the mean 0.45 L, at least 1 and at most L. DeepFM does not read the history. All sides train
the same rows in turn; a ratio is taken within a round, and its median over the rounds is reported. SDIM with histories
of 1,000 is compared with DIN and with SDIM on histories of 50, of the same shape and fewer rows.
"""

import argparse
import json
import os
import pathlib
import statistics
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import sides

ROWS, ROUNDS, DIM = 150_000, 3, 16
SHORT, LONG, LONG_ROWS = 50, 1000, 20_000
SIDES = {20: ("deepfm", "din", "bst", "dien"), 50: ("deepfm", "din")}
SPEC = """
name = "histories"
[label]
column = "clicked"
[defaults]
dim = {dim}
[[sparse]]
columns = ["user", "item", "C1", "C2", "C3", "C4", "C5"]
[[sparse]]
name = "history"
slot = "item"
combiner = "none"
max_length = {length}
"""


def data(place: pathlib.Path, length: int, rows: int = ROWS) -> None:
    """Writes the feature spec and so many rows, converted."""
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
    (place / "spec.toml").write_text(SPEC.format(dim=DIM, length=length))
    paths = f"--input={place / 'rows.parquet'}", f"--feature_spec={place / 'spec.toml'}", f"--output={place / 'data'}"
    sides.call([*sides.COMMAND, "convert", "--format=parquet", *paths])


def examples_per_sec(place: pathlib.Path, model: str, run: str) -> float:
    """Trains a model on core 0, and returns its examples per second."""
    model_dir = place / f"{model}-{run}"
    flags = [f"--train_data={place / 'data'}", f"--model_dir={model_dir}", f"--model={model}"]
    flags += ["--threads=1", "--save_checkpoints_steps=0", "--eval_data=", "--epochs=1", "--recipe=none"]
    on_core_0 = ["taskset", "-c", "0", *sides.COMMAND, "train", *flags]
    sides.call(on_core_0, OMP_NUM_THREADS="1", NUMBA_NUM_THREADS="1")
    return sides.summary(model_dir)["examples_per_sec"]


def run(flags: argparse.Namespace) -> dict[str, float]:
    """Returns the ratios by their keys."""
    with tempfile.TemporaryDirectory() as directory:
        found = _long(pathlib.Path(directory))
        for length, models in SIDES.items():
            place = pathlib.Path(directory, str(length))
            data(place, length)
            ratios: dict[str, list[float]] = {model: [] for model in models[1:]}
            for number in range(ROUNDS):
                rates = {model: examples_per_sec(place, model, str(number)) for model in models}
                for model, of in ratios.items():
                    of.append(rates[model] / rates["deepfm"])
                load = os.getloadavg()[0]
                print(f"history {length}, round {number + 1}: {json.dumps(rates)}, load {load:.1f}", flush=True)
            suffix = "" if length == 20 else f"_{length}"
            found |= {
                f"{model}_over_deepfm_speed{suffix}": round(statistics.median(of), 3) for model, of in ratios.items()
            }
    return found


def _long(directory: pathlib.Path) -> dict[str, float]:
    """Returns the examples per second of SDIM with histories of 1,000 over those of DIN and SDIM with 50."""
    for length in (SHORT, LONG):
        data(directory / f"long_{length}", length, LONG_ROWS)
    ratios: dict[str, list[float]] = {"din": [], "sdim": []}
    for number in range(ROUNDS):
        rates = {model: examples_per_sec(directory / f"long_{SHORT}", model, str(number)) for model in ratios}
        long = examples_per_sec(directory / f"long_{LONG}", "sdim", str(number))
        for model, of in ratios.items():
            of.append(long / rates[model])
        print(f"history {LONG}, round {number + 1}: {long}, {SHORT}: {json.dumps(rates)}", flush=True)
    return {f"sdim_{LONG}_over_{model}_{SHORT}_speed": round(statistics.median(of), 3) for model, of in ratios.items()}
