"""The part `zoo` of `model_quality.py`: all models of one label on the same rows, and their table in docs/models.md.

The rows are MovieLens-1M's, split by time. The models of histories also read the user's last 20 liked movies and last
20 ratings. All models have one setting, SETTING, which was found for DeepFM on the validation part; the epoch is chosen
by its AUC, and the test part is read once. The speed is in examples per second of processor time, which other programs
on the machine change little, of one worker with one thread. Results stay in zoo.jsonl below --work; a run whose result
is there is not repeated. The table has the mean of the seeds that are there, and says of which models no faster one has
a higher validation AUC.
"""

import argparse
import collections
import dataclasses
import json
import pathlib
import statistics
import textwrap
import time
from typing import Any

import accuracy
import accuracy_data
import numpy as np
import tensorflow as tf

from ctr_trainer.models.histories import HistoryParams
from ctr_trainer.models.registry import MODELS, find_model

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "models.md"
BEGIN, END = "<!-- The next table is written by benchmarks/quality_zoo.py. -->\n", "<!-- Its end. -->\n"
BATCH, FROM, TO = 2048, 20, 150  # The speed is measured between two steps before the first evaluation.
SETTING = (
    f"--batch_size={BATCH}",
    *("--dropout=0.1", "--optimizer=adam", "--learning_rate=0.002"),
    *("--embedding_optimizer=adam", "--embedding_learning_rate=0.002", "--embedding_l2=3e-4"),
    *("--epochs=8", "--eval_steps=191", "--best_metric=auc", "--early_stopping_patience=2"),
)
# What a model needs that the others have no use for.
OWN = {
    "ffm": ("--embedding_dim=32",),  # Four numbers for each pair of the 8 features.
    "final_mlp": ("--model_params=first_context=user_id,second_context=movie_id",),
    "pepnet": ("--model_params=personal=user_id:movie_id",),
}
COLUMNS = (
    "model",
    "AUC",
    "log loss",
    "COPC",
    "valid AUC",
    "examples/s",
    "dense parameters",
    "seeds",
    "no faster one is better",
)


def models() -> list[str]:
    """Returns the models of one label."""
    return [name for name in MODELS if not find_model(name).params_class.several_labels]


def run(flags: argparse.Namespace) -> dict[str, float]:
    """Trains the models, writes the table, and returns the best test AUC with histories and without."""
    results = accuracy.Results(flags.work / "zoo.jsonl")
    for seed in flags.seeds:
        for model in flags.models or models():
            key = dict(model=model, seed=seed, flags=list(chosen(model)))
            if not results.has(**key):
                results.add(**key, **_measured(model, seed, flags))
                print(json.dumps(results.lines[-1]), flush=True)
    known = [line for line in results.lines if line["flags"] == list(chosen(line["model"]))]
    rows = table(known)
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(before + BEGIN + rows + END + rest.partition(END)[2])
    print(rows)
    aucs: dict[bool, float] = collections.defaultdict(float)
    for line in known:
        aucs[reads_histories(line["model"])] = max(aucs[reads_histories(line["model"])], line["auc"])
    return {"zoo_best_auc": aucs[False], "zoo_best_history_auc": aucs[True]}


def reads_histories(model: str) -> bool:
    """Returns whether a model reads sequences."""
    return issubclass(find_model(model).params_class, HistoryParams)


def chosen(model: str) -> tuple[str, ...]:
    """Returns the flags of a model, but for its paths and its seed."""
    target = ("--model_params=target=movie_id",) if reads_histories(model) else ()
    return (f"--model={model}", *SETTING, *OWN.get(model, target))


def _measured(model: str, seed: int, flags: argparse.Namespace) -> dict[str, Any]:
    import accuracy_ours

    data = "movielens-history" if reads_histories(model) else "movielens-time"
    parts, cost = accuracy_data.prepare(data, flags.real_data, flags.work), Cost()
    found = accuracy_ours.run(data, parts, model, seed, chosen(model), is_flagfile=False, hooks=[cost])
    return found | {"examples_per_sec": round(cost.examples_per_sec), "parameters": cost.parameters}


class Cost(tf.compat.v1.train.SessionRunHook):
    """Counts the dense parameters of a training, and its examples per second of processor time.

    Attributes:
      parameters: numbers in the trainable variables; rows are not among them.
      examples_per_sec: of the steps FROM to TO.
    """

    def __init__(self) -> None:
        self.parameters, self.examples_per_sec = 0, 0.0
        self._steps, self._since = 0, 0.0

    def begin(self) -> None:
        self.parameters = sum(int(np.prod(v.shape.as_list())) for v in tf.compat.v1.trainable_variables())

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._steps += 1
        if self._steps == FROM:
            self._since = time.process_time()
        if self._steps == TO:
            self.examples_per_sec = (TO - FROM) * BATCH / (time.process_time() - self._since)


@dataclasses.dataclass(frozen=True)
class _Row:
    """The means of a model over its seeds."""

    model: str
    auc: float
    logloss: float
    copc: float
    valid: float
    examples_per_sec: float
    parameters: float
    seeds: int


def table(lines: list[dict[str, Any]]) -> str:
    """Returns the table in Markdown, the highest AUC first, and a line that names the models without a result."""
    of_models = collections.defaultdict(list)
    for line in lines:
        of_models[line["model"]].append(line)
    rows = sorted((_row(model, of) for model, of in of_models.items()), key=lambda row: -row.auc)
    texts = [f"| {' | '.join(COLUMNS)} |", f"|---|{'---:|' * (len(COLUMNS) - 1)}"]
    for row in rows:
        history = " (histories)" if reads_histories(row.model) else ""
        numbers = f"{row.auc:.4f} | {row.logloss:.4f} | {row.copc:.3f} | {row.valid:.4f}"
        costs = f"{round(row.examples_per_sec, -2):,.0f} | {row.parameters:,.0f} | {row.seeds}"
        ahead = all(row.valid > other.valid for other in rows if other.examples_per_sec > row.examples_per_sec)
        texts.append(f"| `{row.model}`{history} | {numbers} | {costs} | {'yes' if ahead else ''} |")
    if missing := [f"`{model}`" for model in models() if model not in of_models]:
        texts += ["", *textwrap.wrap(f"Without a result so far: {', '.join(missing)}.", 120)]
    return "\n".join(texts) + "\n"


def _row(model: str, lines: list[dict[str, Any]]) -> _Row:
    names = ("auc", "logloss", "copc", "valid", "examples_per_sec", "parameters")
    means = {name: statistics.mean(line[name] for line in lines) for name in names}
    return _Row(model, **means, seeds=len(lines))
