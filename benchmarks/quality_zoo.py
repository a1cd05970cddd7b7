"""The part `zoo` of `model_quality.py`: all models of one label on the same rows, and their table in docs/models.md.

The rows are MovieLens-1M's, split by time. The models of histories also read the user's last 20 liked movies and last
20 ratings. All models have one setting, SETTING, which was found for DeepFM on the validation part; the epoch is chosen
by its AUC, and the test part is read once. The speed is in examples per second of processor time, which other programs
on the machine change little, of one worker with one thread. Results stay in zoo.jsonl below --work; a run whose result
is there is not repeated. The table has the mean of the seeds that are there, and says of which models no faster one has
a higher validation AUC. With --sizes a second table has the AUC of the models in SIZES against the floating-point
operations of one prediction. A row of the page stays if the results have none for its model, so that `--models=tabm`
adds one row.
"""

import argparse
import collections
import dataclasses
import itertools
import json
import math
import pathlib
import statistics
import textwrap
import time
from typing import Any

import accuracy_data
import numpy as np
import tensorflow as tf

from ctr_trainer.models.registry import MODELS, find_model
from ctr_trainer.models.shared import HistoryParams

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
# Models at five sizes; each size has about four times the operations of the previous one.
SIZES = {
    "dcn_v2": (
        ("cross_layers=1,cross_rank=16", "32"),
        ("cross_layers=2,cross_rank=32", "64,64"),
        ("cross_layers=3", "256,128,64"),
        ("cross_layers=4", "1024,256,64"),
        ("cross_layers=4", "2048,768,256"),
    ),
    "wukong": (
        ("interaction_layers=1,products=4,combinations=4,rank=4,product_units=16", "32"),
        ("interaction_layers=2,products=4,combinations=4,rank=8,product_units=64", "64,32"),
        ("interaction_layers=3,products=8,combinations=8,rank=8,product_units=64", "192,64"),
        ("interaction_layers=4,products=16,combinations=16,rank=16,product_units=128", "128,64"),
        ("interaction_layers=5,products=24,combinations=24,rank=24,product_units=256", "256,64"),
    ),
    "rank_mixer": (
        ("token_dim=16,blocks=1,expansion=1", "64"),
        ("token_dim=32,blocks=1,expansion=1", "64,64"),
        ("token_dim=40,blocks=2,expansion=2", "128,64"),
        ("token_dim=80,blocks=2,expansion=2", "256,128,64"),
        ("token_dim=160,blocks=2,expansion=2", "512,256,64"),
    ),
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
    """Trains the models, writes the table, and returns the best test AUC with histories and without, if measured."""
    results = accuracy_data.Results(flags.work / "zoo.jsonl")
    wanted = [(model, chosen(model)) for model in flags.models or models()]
    wanted += [(model, sized(model, size)) for size in flags.sizes for model in SIZES if model in dict(wanted)]
    for seed in flags.seeds:
        for model, of in wanted:
            key = dict(model=model, seed=seed, flags=list(of))
            if not results.has(**key):
                results.add(**key, **_measured(model, seed, flags, of))
                print(json.dumps(results.lines[-1]), flush=True)
    known = [line for line in results.lines if line["flags"] == list(chosen(line["model"]))]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    page, _, after = rest.partition(END)
    rows = table(known, page) + sizes_table(results.lines, page)
    PAGE.write_text(before + BEGIN + rows + END + after)
    print(rows)
    aucs: dict[str, float] = {}
    for line in known:
        key = "zoo_best_history_auc" if reads_histories(line["model"]) else "zoo_best_auc"
        aucs[key] = max(aucs.get(key, 0.0), line["auc"])
    return aucs


def reads_histories(model: str) -> bool:
    """Returns whether a model reads sequences."""
    return issubclass(find_model(model).params_class, HistoryParams)


def chosen(model: str) -> tuple[str, ...]:
    """Returns the flags of a model, but for its paths and its seed."""
    target = ("--model_params=target=movie_id",) if reads_histories(model) else ()
    return (f"--model={model}", *SETTING, *OWN.get(model, target))


def sized(model: str, size: int) -> tuple[str, ...]:
    """Returns the flags of a model of SIZES, but for its paths and its seed; sizes count from 1."""
    params, units = SIZES[model][size - 1]
    return (*chosen(model), f"--model_params={params}", f"--hidden_units={units}")


def _measured(model: str, seed: int, flags: argparse.Namespace, of: tuple[str, ...]) -> dict[str, Any]:
    import accuracy_ours

    data = "movielens-history" if reads_histories(model) else "movielens-time"
    parts, cost = accuracy_data.prepare(data, flags.real_data, flags.work), Cost()
    found = accuracy_ours.run(data, parts, model, seed, of, is_flagfile=False, hooks=[cost])
    costs = {"parameters": cost.parameters, "flops": cost.flops}
    return found | {"examples_per_sec": round(cost.examples_per_sec), **costs}


class Cost(tf.compat.v1.train.SessionRunHook):
    """Counts the dense parameters of a training, its operations, and its examples per second of processor time.

    Attributes:
      parameters: numbers in the trainable variables; rows are not among them.
      flops: multiplications and additions of the matrix products of one prediction.
      examples_per_sec: of the steps FROM to TO.
    """

    def __init__(self) -> None:
        self.parameters, self.flops, self.examples_per_sec = 0, 0, 0.0
        self._steps, self._since = 0, 0.0

    def begin(self) -> None:
        self.parameters = sum(int(np.prod(v.shape.as_list())) for v in tf.compat.v1.trainable_variables())

        self.flops = sum(_flops(op) for op in tf.compat.v1.get_default_graph().get_operations()) // BATCH

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._steps += 1
        if self._steps == FROM:
            self._since = time.process_time()
        if self._steps == TO:
            self.examples_per_sec = (TO - FROM) * BATCH / (time.process_time() - self._since)


def _flops(op: tf.Operation) -> int:
    """Returns the multiplications and additions of a matrix product of known sizes; 0 for gradients and all else."""
    is_product = op.type in ("MatMul", "BatchMatMulV2", "Einsum") and "gradients/" not in op.name
    if not is_product or any(not tensor.shape.is_fully_defined() for tensor in (*op.inputs, *op.outputs)):
        return 0
    left, right, out = (tensor.shape.as_list() for tensor in (*op.inputs, *op.outputs))
    if op.type != "Einsum":
        return 2 * left[-1] * math.prod(out)  # No model transposes the left side.
    letters = op.get_attr("equation").decode().partition("->")[0].replace(",", "")
    return 2 * math.prod(dict(zip(letters, left + right, strict=True)).values())


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


def table(lines: list[dict[str, Any]], page: str = "") -> str:
    """Returns the table in Markdown, the highest AUC first, and a line that names the models without a result.

    Args:
      lines: the results.
      page: the tables that this one replaces; the rows of models without a line in `lines` are taken from there.
    """
    of_models = collections.defaultdict(list)
    for line in lines:
        of_models[line["model"]].append(line)
    found = {row.model: row for row in _rows_of(page)} | {model: _row(model, of) for model, of in of_models.items()}
    rows = sorted(found.values(), key=lambda row: -row.auc)
    texts = [f"| {' | '.join(COLUMNS)} |", f"|---|{'---:|' * (len(COLUMNS) - 1)}"]
    for row in rows:
        history = " (histories)" if reads_histories(row.model) else ""
        numbers = f"{row.auc:.4f} | {row.logloss:.4f} | {row.copc:.3f} | {row.valid:.4f}"
        costs = f"{round(row.examples_per_sec, -2):,.0f} | {row.parameters:,.0f} | {row.seeds}"
        faster = [other for other in rows if other.examples_per_sec > row.examples_per_sec]
        ahead = all(round(row.valid, 4) >= round(other.valid, 4) for other in faster)
        texts.append(f"| `{row.model}`{history} | {numbers} | {costs} | {'yes' if ahead else ''} |")
    if missing := [f"`{model}`" for model in models() if model not in found]:
        texts += ["", *textwrap.wrap(f"Without a result so far: {', '.join(missing)}.", 120)]
    return "\n".join(texts) + "\n"


def sizes_table(lines: list[dict[str, Any]], page: str = "") -> str:
    """Returns the table of the models in SIZES, in Markdown, and a line above it; nothing without a result.

    Args:
      lines: the results.
      page: see `table`.
    """
    kept = {text[: text.rindex("`")]: text for text in page.splitlines() if text[:3] in {f"| {n}" for n in range(1, 6)}}
    texts = ["", "Models of several sizes, by the thousand operations of one prediction:", ""]
    texts.append("| size | model | kFLOPs | AUC | log loss | COPC | valid AUC | dense parameters | seeds |")
    texts.append(f"|---|---|{'---:|' * 7}")
    for size, model in itertools.product(range(1, 6), SIZES):
        if of := [line for line in lines if line["flags"] == list(sized(model, size))]:
            row = _row(model, of)
            numbers = f"{row.auc:.4f} | {row.logloss:.4f} | {row.copc:.3f} | {row.valid:.4f}"
            costs = f"{of[0]['flops'] / 1000:,.0f} | {numbers} | {row.parameters:,.0f} | {row.seeds}"
            texts.append(f"| {size} | `{model}` | {costs} |")
        elif text := kept.get(f"| {size} | `{model}"):
            texts.append(text)
    return "\n".join(texts) + "\n" if len(texts) > 5 else ""


def _row(model: str, lines: list[dict[str, Any]]) -> _Row:
    names = ("auc", "logloss", "copc", "valid", "examples_per_sec", "parameters")
    means = {name: statistics.mean(line[name] for line in lines) for name in names}
    return _Row(model, **means, seeds=len(lines))


def _rows_of(page: str) -> list[_Row]:
    """Returns the rows of the models in a text that `table` returned, rounded as they are shown there."""
    rows = []
    for text in page.splitlines():
        if text.startswith("| `"):
            name, *cells = (cell.strip().replace(",", "") for cell in text.strip("|").split("|"))
            auc, logloss, copc, valid, speed, parameters, seeds = map(float, cells[:7])
            rows.append(_Row(name.split("`")[1], auc, logloss, copc, valid, speed, parameters, int(seeds)))
    return rows
