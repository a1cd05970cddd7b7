"""The part `zoo` of `model_quality.py`: all models for one label on the same rows, and their table in docs/models.md.

The page describes the data, the settings and the figures. The speed is in examples per second of CPU time, on which
other programs on the machine have little influence. docs/models.json has the figures of each model and size, and the
tables of the page are written from it. A run replaces the figures of the models that it measures.
"""

import argparse
import functools
import itertools
import json
import math
import statistics
import tempfile
import time
from typing import Any

import numpy as np
import sides
import tensorflow as tf
from accuracy_data import Parts, flagfile, flags_of, once, prepare, train_and_test

from ctr_trainer.commands.experiment import build
from ctr_trainer.commands.experiment import flags as experiment_flags
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.commands.train import GROUPS
from ctr_trainer.models.params import HistoryParams, SequenceParams
from ctr_trainer.models.registry import MODELS, find_model

PAGE, ROWS = sides.ROOT / "docs" / "models.md", sides.ROOT / "docs" / "models.json"
BEGIN, END = "<!-- benchmarks/quality_zoo.py writes the next table from models.json. -->\n", "<!-- Its end. -->\n"
BATCH, FROM, TO = 2048, 20, 150  # The speed is measured between two steps.
SETTING = tuple(flags_of(flagfile("movielens-time", "deepfm")))
# Flags that only some models need.
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
# The columns of both tables; the keys are those of models.json.
_FIGURES = (
    *(("AUC", "auc", ".4f"), ("log loss", "logloss", ".4f"), ("COPC", "copc", ".3f"), ("valid AUC", "valid", ".4f")),
    *(("dense parameters", "parameters", ",.0f"), ("seeds", "seeds", "d")),
)
_MODEL, _SPEED = ("model", "name", ""), ("examples/s", "examples_per_sec", ",.0f")
_OF_MODELS = (_MODEL, _SPEED, *_FIGURES, ("no faster one is better", "ahead", ""))
_OF_SIZES = (("size", "size", "d"), _MODEL, ("kFLOPs", "kflops", ",.0f"), *_FIGURES)


def models() -> list[str]:
    """Returns the names of the models for one label."""
    return [name for name in MODELS if not find_model(name).params_class.several_labels]


def measure(flags: argparse.Namespace) -> dict[str, float]:
    """Measures the models, writes the tables, and returns the best test AUCs with and without histories."""
    best = dict[str, float]()
    rows = {(row["model"], row["size"]): row for row in json.loads(ROWS.read_text())}
    for size, model in itertools.product((0, *flags.sizes), flags.models or models()):
        if size and model not in SIZES:
            continue
        data, given, runs = "movielens-history" if reads_histories(model) else "movielens-time", chosen(model, size), []
        parts = prepare(data, flags.real_data, flags.work)
        for seed in flags.seeds:
            measured = functools.partial(_measured, parts, seed, given)
            runs.append(once(flags.work / "zoo.jsonl", measured, model=model, seed=seed, flags=[*given]))
            print(json.dumps(runs[-1]), flush=True)
        names = ("auc", "logloss", "copc", "valid", "examples_per_sec", "parameters", "kflops")
        means = {name: round(statistics.mean(each[name] for each in runs), 6) for name in names}
        rows[model, size] = {"model": model, "size": size, **means, "seeds": len(runs)}
        key = "zoo_best_history_auc" if reads_histories(model) else "zoo_best_auc"
        best[key] = max(best.get(key, 0.0), 0.0 if size else means["auc"])
    ROWS.write_text("[\n" + ",\n".join(json.dumps(row) for _, row in sorted(rows.items())) + "\n]\n")
    above, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(above + BEGIN + tables([*rows.values()]) + END + rest.partition(END)[2])
    return best


def reads_histories(model: str) -> bool:
    """Returns whether a model reads sequences."""
    return issubclass(find_model(model).params_class, SequenceParams)


def chosen(model: str, size: int = 0) -> tuple[str, ...]:
    """Returns the flags of a model, except paths and seed; sizes in SIZES begin at 1, and 0 selects none of them."""
    compares = issubclass(find_model(model).params_class, HistoryParams)
    target = ("--model_params=target=movie_id",) if compares else ()
    flags = (*SETTING, f"--model={model}", *OWN.get(model, target))
    if not size:
        return flags
    params, units = SIZES[model][size - 1]
    return (*flags, f"--model_params={params}", f"--hidden_units={units}")


def _measured(parts: Parts, seed: int, given: tuple[str, ...]) -> dict[str, Any]:
    """Returns the figures of a run: those of its test, and those of a short training with a `Cost`."""
    values, cost = experiment_flags.define(GROUPS), Cost()
    with tempfile.TemporaryDirectory() as directory:
        values(["zoo", *given, f"--train_data={parts.train}", f"--model_dir={directory}", "--save_checkpoints_steps=0"])
        experiment = experiment_flags.read(Experiment, values)
        build.start_workers(experiment)
        estimator = build.make_estimator(experiment)
        estimator.train(lambda: build.training_reader(experiment, None), hooks=[cost], max_steps=TO)
    costs = {"examples_per_sec": round(cost.examples_per_sec, -2), "parameters": cost.parameters}
    return train_and_test(parts, seed, *given) | costs | {"kflops": cost.flops / 1000}


class Cost(tf.compat.v1.train.SessionRunHook):
    """Measures a training's dense parameters, its operations, and its examples per second of CPU time.

    Attributes:
      parameters: number of trainable weights, without embedding rows.
      flops: multiplications and additions in the matrix products of one prediction.
      examples_per_sec: examples per second of CPU time in the steps FROM to TO.
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
    """Returns the multiplications and additions of a matrix product of known sizes; 0 for other ops and gradients."""
    is_product = op.type in ("MatMul", "BatchMatMulV2", "Einsum") and "gradients/" not in op.name
    if not is_product or any(not tensor.shape.is_fully_defined() for tensor in (*op.inputs, *op.outputs)):
        return 0
    left, right, out = (tensor.shape.as_list() for tensor in (*op.inputs, *op.outputs))
    if op.type != "Einsum":
        return 2 * left[-1] * math.prod(out)  # No model transposes the left side.
    letters = op.get_attr("equation").decode().partition("->")[0].replace(",", "")
    return 2 * math.prod(dict(zip(letters, left + right, strict=True)).values())


def tables(rows: list[dict[str, Any]]) -> str:
    """Returns both tables in Markdown: the models, highest AUC first, and the models of several sizes."""
    plain = sorted((row for row in rows if not row["size"]), key=lambda row: -row["auc"])
    of_models = []
    for row in plain:
        history = " (histories)" if reads_histories(row["model"]) else ""
        faster = [other for other in plain if other["examples_per_sec"] > row["examples_per_sec"]]
        ahead = all(round(row["valid"], 4) >= round(other["valid"], 4) for other in faster)
        of_models.append({**row, "name": f"`{row['model']}`{history}", "ahead": "yes" if ahead else ""})
    sized = sorted((row for row in rows if row["size"]), key=lambda row: (row["size"], row["model"]))
    of_sizes = [{**row, "name": f"`{row['model']}`"} for row in sized]
    title = "Models of several sizes, by the thousand operations of one prediction:"
    both = [*sides.markdown(_OF_MODELS, of_models), "", title, "", *sides.markdown(_OF_SIZES, of_sizes)]
    return "\n".join([*both, ""])
