"""Measures how much of the loss of quality by late labels `--delayed_labels` recovers, on simulated streams.

docs/delayed_labels.md describes the data, the methods and the figures. Impressions and delays are drawn at random, and
records after the last day are not used. METHODS has the streams and their losses: an impression is recorded with its
label at that time, and a later click is ignored or recorded again as a positive example. A method closes the share
(method - ignore) / (oracle - ignore) of a gap. The last line is JSON.

Example: python benchmarks/delayed_labels.py --rows=100000 --seeds=1
"""

import dataclasses
import json
import pathlib
import statistics
import tempfile
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import sides
from sides import command, last_json

DAYS, WINDOW_HOURS, WAIT_HOURS, MEAN_HOURS, COLUMN = 20, 1.0, 72.0, (0.1, 12.0), "C14"
METRICS = ("auc", "logloss", "copc")
GAPS = {"auc_gap_closed": "auc", "nll_gap_closed": "logloss"}
SPEC = """
name = "delayed"
label = [{column = "click"}, {column = "late"}]
defaults = {dim = 16, transform = "log1p"}
dense = [{columns = ["I1..I13"]}]
sparse = [{columns = ["C1..C26"]}]
"""


@dataclasses.dataclass(frozen=True)
class Method:
    """A stream and its loss: delay of impressions in hours, whether late clicks are recorded, and the flag's value."""

    window_hours: float
    sees_late: bool
    flag: str = "wait"


METHODS = {
    "oracle": Method(np.inf, False),
    "wait": Method(WAIT_HOURS, False),
    "window": Method(WINDOW_HOURS, False),
    "ignore": Method(WINDOW_HOURS, True),
    "es_dfm": Method(WINDOW_HOURS, True, "es_dfm"),
    "ignore_at_once": Method(0.0, True),
    "fake_negative": Method(0.0, True, "fake_negative"),
}


def records(impressions: pa.Table, method: Method, seed: int) -> pa.Table:
    """Returns the records of a method in the order of time: features, `click` and `late`."""
    rng = np.random.default_rng(seed)
    hours = rng.uniform(0, 24 * DAYS, len(impressions))
    values, number = np.unique(impressions[COLUMN].to_numpy(), return_inverse=True)
    delays = rng.exponential(rng.choice(MEAN_HOURS, len(values))[number])
    clicked = impressions["label"].to_numpy() > 0
    in_time = clicked & (delays <= method.window_hours)
    late = np.flatnonzero(clicked & ~in_time) if method.sees_late else np.empty(0, np.int64)
    waited = method.window_hours if np.isfinite(method.window_hours) else 0.0
    times = np.concatenate([hours + waited, hours[late] + delays[late]])
    rows = np.concatenate([np.arange(len(impressions)), late])
    clicks = np.concatenate([in_time, np.ones(len(late), bool)]).astype(int)
    is_late = np.repeat([0, 1], [len(impressions), len(late)])
    order = np.argsort(times, kind="stable")
    order = order[times[order] <= 24 * DAYS]
    features = impressions.drop_columns(["label"]).take(rows[order])
    return features.append_column("click", pa.array(clicks[order])).append_column("late", pa.array(is_late[order]))


def scores(method: Method, train: pa.Table, test: pa.Table, seed: int, work: pathlib.Path) -> dict[str, float]:
    """Trains once over a method's records, in order, and returns the metrics on the test rows."""
    work.mkdir()
    (work / "spec.toml").write_text(SPEC)
    pq.write_table(records(train, method, seed), work / "train.parquet")
    pq.write_table(records(test, METHODS["oracle"], seed), work / "test.parquet")
    flags = [f"--model_dir={work / 'model'}", "--batch_size=512", "--recipe=none"]
    own = [f"--train_data={work / 'train.parquet'}", f"--feature_spec={work / 'spec.toml'}", "--label=click"]
    own += [
        "--shuffle_buffer=0",
        f"--seed={seed}",
        "--embedding_optimizer_params=initial_accumulator=1e-3",
        f"--delayed_labels={method.flag}",
    ]
    command("train", *flags, *own)
    found = last_json(command("evaluate", *flags, f"--eval_data={work / 'test.parquet'}"))
    return {name: found[f"{name}/click"] for name in METRICS}


def measure(rows: int = 400_000, seeds: int = 3) -> dict[str, Any]:
    """Returns the figures of the last line by key: mean, minimum and maximum of each figure over the seeds."""
    runs: list[dict[str, dict[str, float]]] = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as directory:
            data = pathlib.Path(directory)
            command("convert", "--format=synthetic", f"--output={data / 'demo'}", f"--rows={rows}", f"--seed={seed}")
            train, test = (pq.read_table(data / "demo" / part, partitioning=None) for part in ("train", "test"))
            of_seed = {name: scores(each, train, test, seed, data / name) for name, each in METHODS.items()}
        low, high = of_seed["ignore"], of_seed["oracle"]
        runs.append({})
        for name, one in of_seed.items():
            closed = {key: (one[of] - low[of]) / (high[of] - low[of]) for key, of in GAPS.items()}
            runs[-1][name] = one | closed
            print(f"seed {seed}, {name}: {runs[-1][name]}", flush=True)
    keys = (*METRICS, *GAPS)
    methods = {name: {key: summary([run[name][key] for run in runs]) for key in keys} for name in METHODS}
    chosen = {f"delayed_{key}": methods["fake_negative"][key]["mean"] for key in (*GAPS, "copc")}
    return {**chosen, "delayed_labels": {"rows": rows, "seeds": seeds, **methods}}


def summary(values: list[float]) -> dict[str, float]:
    """Returns mean, minimum and maximum."""
    return {"mean": round(statistics.mean(values), 4), "min": round(min(values), 4), "max": round(max(values), 4)}


if __name__ == "__main__":
    parser = sides.parser(__doc__)
    parser.add_argument("--rows", type=int, default=400_000, help="impressions to train on")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of data, delays and training")
    print(json.dumps(measure(**vars(parser.parse_args()))))
