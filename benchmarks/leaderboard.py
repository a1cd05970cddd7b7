"""Trains our models on the files of the BARS leaderboard with its settings, and compares them with its figures.

    python benchmarks/leaderboard.py --data=frappe_x1 --path=data/Frappe_x1 --seeds=1
    python benchmarks/leaderboard.py --data=taobaoad_x1 --path=data/TaobaoAd_x1 --models=din,deepfm --choose_on_test

docs/accuracy.md describes files, preprocessing and settings. The files are rewritten in the leaderboard's form and
converted once, below --work.

Each run is a line of results.jsonl below --work, and is not repeated while its flags are the same. The table has the
means over the seeds, and the spread, highest minus lowest. Core seconds are the CPU time of the training with its
evaluations. The last line is JSON.
"""

import argparse
import functools
import itertools
import json
import pathlib
import statistics
import sys
import tempfile
from typing import Any, NamedTuple

import leaderboard_data
import sides
from leaderboard_data import load
from sides import Parts

_FIGURES = ("auc", "logloss", "gauc", "copc", "examples_per_sec", "core_seconds")
_NOT_BARS = "These are not the leaderboard's files: the figures are not the leaderboard's."
_ON_TEST = "The epoch was chosen by the test file, as BARS does: the figures are too good for what new data would show."
_HELD_OUT = (
    "The epoch was chosen by a tenth of the training file that was held out; BARS trains on all of it and chooses by "
    "the test file (--choose_on_test)."
)


class Training(NamedTuple):
    """The data of a training, its flags except paths, model and seed, and the flags of its test."""

    parts: Parts
    flags: list[str]
    of_test: tuple[str, ...] = ()


def _work(flags: argparse.Namespace) -> pathlib.Path:
    """Returns the directory of the data, another one for files that need not be the leaderboard's."""
    return flags.work / (flags.data + "_any" * flags.any_files)


def _training(flags: argparse.Namespace, model: str) -> Training:
    """Converts the data for a model."""
    data = load(flags.data)
    parts = leaderboard_data.prepare(data, flags.path, _work(flags), model, flags.choose_on_test, flags.any_files)
    given = [f"--flagfile={data.flagfile}", *data.flags.get(model, ()), *flags.more]
    return Training(parts, given, ("--group_by=group",) if data.group else ())


def _measured(flags: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """Returns the results of each model, one per seed; only runs that results.jsonl lacks are made."""
    leaderboard_data.check(load(flags.data), flags.path, flags.any_files)
    trainings = {model: _training(flags, model) for model in flags.models}
    found: dict[str, list[dict[str, float]]] = {model: [] for model in trainings}
    runs = list(itertools.product(trainings, flags.seeds))
    for number, (model, seed) in enumerate(runs, 1):
        title = f"run {number} of {len(runs)}: {flags.data}, {model}, seed {seed}"
        result = functools.partial(_result, trainings[model], model, seed, _work(flags), title)
        parts, given, _ = trainings[model]
        given = [*given, f"--train_data={parts.train}", f"--eval_data={parts.valid}"]
        key = {"data": flags.data, "model": model, "seed": seed, "flags": given}
        found[model].append(sides.once(flags.work / "results.jsonl", result, **key))
    return found


def _result(training: Training, model: str, seed: int, work: pathlib.Path, title: str) -> dict[str, float]:
    """Prints the title, trains, tests the best epoch, and returns the figures that `_FIGURES` names."""
    print(title, file=sys.stderr, flush=True)
    own = f"--model={model}", f"--seed={seed}", "--summary_steps=0", "--save_checkpoints_steps=0"
    with tempfile.TemporaryDirectory(prefix=f"{model}_", dir=work) as directory:
        model_dir = pathlib.Path(directory)
        trained = sides.train(training.parts, model_dir, *training.flags, *own, shows_log=True)
        tested = sides.test(model_dir, training.parts.test, "--checkpoint=best", *training.of_test)
    return {name: value for name, value in (tested | trained).items() if name in _FIGURES}


def summary(flags: argparse.Namespace, found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Returns the JSON object: by model, the means, the spreads of AUC and log loss, and BARS' figures if known."""
    bars = None if flags.any_files else load(flags.data)
    models: dict[str, dict[str, Any]] = {}
    for model, lines in found.items():
        means = {name: statistics.mean(line[name] for line in lines) for name in _FIGURES if name in lines[0]}
        entry = {name: round(mean, 6) if mean < 100 else round(mean) for name, mean in means.items()}
        for name in ("auc", "logloss"):
            values = [line[name] for line in lines]
            entry[f"{name}_spread"] = round(max(values) - min(values), 6)
        entry["seeds"] = len(lines)
        if bars and model in bars.models:
            entry |= {f"bars_{name}": value for name, value in zip(_FIGURES, bars.models[model], strict=False)}
            mean_auc, mean_logloss = bars.means.get(model, bars.models[model])[:2]
            entry["auc_minus_bars"] = round(entry["auc"] - mean_auc, 6)
            entry["logloss_minus_bars"] = round(entry["logloss"] - mean_logloss, 6)
            entry |= {"bars_mean_auc": mean_auc} if model in bars.means else {}
        models[model] = entry
    chosen_on_test = flags.choose_on_test and "valid" not in load(flags.data).md5
    is_bars = bars is not None and not flags.more
    return {"data": flags.data, "leaderboard": is_bars, "chosen_on_test": chosen_on_test, "models": models}


COLUMNS = (
    *(("model", "model", ""), ("seeds", "seeds", "d"), ("AUC", "auc", ".4f"), ("spread", "auc_spread", ".4f")),
    *(("BARS", "bars_auc", ".4f"), ("mean of 5", "bars_mean_auc", ".4f"), ("ours - BARS", "auc_minus_bars", "+.4f")),
    *(("log loss", "logloss", ".4f"), ("spread", "logloss_spread", ".4f"), ("BARS", "bars_logloss", ".4f")),
    *(("ours - BARS", "logloss_minus_bars", "+.4f"), ("gauc", "gauc", ".4f"), ("BARS", "bars_gauc", ".4f")),
    *(("COPC", "copc", ".3f"), ("examples/s", "examples_per_sec", ",.0f"), ("core s", "core_seconds", ",.0f")),
)


def notes(flags: argparse.Namespace) -> list[str]:
    """Returns the notes that belong to the figures."""
    data = load(flags.data)
    said = [_NOT_BARS] if flags.any_files else []
    if flags.more:
        said.append(f"These are not the leaderboard's settings: trained with {' '.join(flags.more)}.")
    if "valid" not in data.md5:
        said.append(_ON_TEST if flags.choose_on_test else _HELD_OUT)
    if without := [m for m in flags.models if m != "deepfm" and m in data.models and m not in data.flags]:
        said.append(f"Without settings of their own, with those of BARS' DeepFM: {', '.join(without)}.")
    if data.means and not flags.any_files:
        said.append("Ours - BARS is to BARS' mean of five runs where it is published; its leaderboard shows the first.")
    return [*said, *([data.note] if data.note else [])]


def main(arguments: list[str] | None = None) -> None:
    flags = _flags(arguments)
    _work(flags).mkdir(parents=True, exist_ok=True)
    if flags.any_files:
        print(_NOT_BARS, file=sys.stderr, flush=True)
    shown = summary(flags, _measured(flags))
    rows = [{"model": model, **entry} for model, entry in shown["models"].items()]
    print("\n".join([*sides.markdown(COLUMNS, rows), *notes(flags)]))
    print(json.dumps(shown))


def _flags(arguments: list[str] | None) -> argparse.Namespace:
    names = tuple(leaderboard_data.figures())
    parser = sides.parser(__doc__)
    parser.add_argument("--data", required=True, choices=names, metavar="NAME", help=", ".join(names))
    about = "directory of train.csv, valid.csv and test.csv"
    parser.add_argument("--path", type=pathlib.Path, required=True, help=about)
    parser.add_argument("--models", type=sides.words, default=["deepfm", "dcn_v2"], help="default deepfm,dcn_v2")
    parser.add_argument("--seeds", type=sides.integers, default=[1, 2, 3, 4, 5], help="default 1,2,3,4,5")
    parser.add_argument("--any_files", action="store_true", help="take files of other MD5s; the output says so")
    on_test_help = "choose the epoch by the test file where BARS has no valid.csv"
    parser.add_argument("--choose_on_test", action="store_true", help=on_test_help)
    default = pathlib.Path(tempfile.gettempdir()) / "ctr_trainer_leaderboard"
    parser.add_argument("--work", type=pathlib.Path, default=default, help="directory of converted data and results")
    parser.add_argument("more", nargs="*", help="further flags of `train`, after a --: -- --epochs=1 --threads=8")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
