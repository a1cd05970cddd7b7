"""Measures the quality of the models compared with other libraries, logistic regression and hand-tuned settings.

    python benchmarks/model_quality.py --parts=defaults,best --seeds=1
    python benchmarks/model_quality.py --parts=best --data=adult --models=tabm --seeds=1,2,3
    python benchmarks/model_quality.py --parts=bars --peer_python=peers/bin/python

The parts `bars`, `best` and `search` are in this file, the others in `quality_PART.py`. docs/accuracy.md describes what
each part compares. Results are kept below --work, and a run that has a result is not repeated; a search continues for
the same time again. The last line is a JSON object. In it, a figure that was not measured is null, and `failed` lists
the parts that failed.
"""

import argparse
import functools
import itertools
import json
import pathlib
import statistics
import sys
import tempfile
from typing import Any

import quality_speed
import sides
from accuracy_data import REAL_DATA, export_arrays, flagfile, flags_of, once, prepare, train_and_test
from sides import Part, later

# Chosen from a grid by FuxiCTR's validation AUC. FuxiCTR embeds numbers and we do not, so Adult has them as categories.
BARS_L2 = {"movielens-random": 1e-4, "adult-categories": 1e-5}
BARS_MODELS = ("deepfm", "dcn_v2", "xdeepfm", "autoint", "fibinet", "masknet", "final_mlp", "pnn")
# The Criteo sample has 10,000 rows, of which 1,000 test: an AUC there has a standard error of 0.02.
SEARCHED, SEARCHED_MODEL = ("movielens-random", "adult"), "deepfm"
# The data sets and models from whose flagfiles the part `best` chooses, by figure; see `flagfile`.
BEST = {
    "adult_best_auc": {"adult": ("dcn_v2", "deepfm", "lr", "tabm", "wide_deep"), "adult-pieces": ("tabm",)},
    "movielens_history_best_auc": {"movielens-history": ("din", "onetrans"), "movielens-means": ("din",)},
}


def bars(flags: argparse.Namespace) -> dict[str, float]:
    """Returns `bars_gap_max`, the largest shortfall of our mean test AUC; prints a line for each model and data set."""
    gaps = []
    for data, model in itertools.product(flags.data or BARS_L2, flags.models or BARS_MODELS):
        runs = {"peer": _fuxictr(flags, data, model), "ours": _trained(flags, "bars", data, bars_flags(data, model))}
        aucs = {side: {run["seed"]: run["auc"] for run in of_side} for side, of_side in runs.items()}
        gaps.append(statistics.mean(aucs["peer"].values()) - statistics.mean(aucs["ours"].values()))
        print(json.dumps({"data": data, "model": model, **aucs, "gap": round(gaps[-1], 6)}), flush=True)
    return {"bars_gap_max": round(max(gaps), 6)}


def bars_flags(data: str, model: str) -> list[str]:
    """Returns the flags of our run, except paths and seed."""
    own = [f"--model={model}", f"--embedding_l2={BARS_L2[data]}"]
    if model == "fibinet":
        own.append("--model_params=bilinear=interaction")  # The variant that is FuxiCTR's default.
    return ["--recipe=bars", *own, "--batch_size=2048", "--hidden_units=256,128,64"]


def _fuxictr(flags: argparse.Namespace, data: str, model: str) -> list[dict[str, Any]]:
    """Returns FuxiCTR's results by seed, which `accuracy_fuxictr.py` measures with --peer_python."""
    arrays, file = flags.work / f"{data}-arrays.npz", flags.work / "bars.jsonl"
    key = {"side": "peer", "data": data, "model": model, "library": "FuxiCTR", "setting": BARS_L2[data]}

    def measured(seed: int) -> dict[str, Any]:
        export_arrays(prepare(data, flags.real_data, flags.work), arrays)
        command = [flags.peer_python, sides.HERE / "accuracy_fuxictr.py", arrays, model, BARS_L2[data], seed]
        return sides.last_json(sides.call(command, shows_log=True))

    return [once(file, functools.partial(measured, seed), **key, seed=seed) for seed in flags.seeds]


def best(flags: argparse.Namespace) -> dict[str, float]:
    """Returns, by figure, the mean test AUC of the flagfile with the best validation AUC; prints a line per data set.

    `--data=adult` selects both feature specs of Adult.
    """
    found = dict[str, list[dict[str, float]]]()
    for figure, data, known in [(figure, *each) for figure, data_sets in BEST.items() for each in data_sets.items()]:
        models = [model for model in known if not flags.models or model in flags.models]
        if not models or (flags.data and not {data, data.partition("-")[0]} & {*flags.data}):
            continue
        means = {model: _means(_trained(flags, "best", data, flags_of(flagfile(data, model)))) for model in models}
        print(json.dumps({"data": data, "means": means}), flush=True)
        found.setdefault(figure, []).extend(means.values())
    return {figure: max(means, key=lambda each: each["valid"])["auc"] for figure, means in found.items()}


def search(flags: argparse.Namespace) -> dict[str, float]:
    """Returns `search_minus_hand_tuned_min`, the smallest difference of mean test AUCs; prints a line per data set."""
    gains, data_sets = [], flags.data or SEARCHED
    for data in data_sets:
        found = _searched(flags, data, flags.search_minutes / len(data_sets))
        runs = _trained(flags, "search", data, flags_of(pathlib.Path(found["flagfile"])))
        by_hand = _trained(flags, "search", data, flags_of(flagfile(data, SEARCHED_MODEL)))
        gains.append(_means(runs)["auc"] - _means(by_hand)["auc"])
        gain = {"data": data, "search": found, "gain": round(gains[-1], 6)}
        print(json.dumps({**gain, "found": runs, "by_hand": by_hand}), flush=True)
    return {"search_minus_hand_tuned_min": round(min(gains), 6)}


def _searched(flags: argparse.Namespace, data: str, minutes: float) -> dict[str, Any]:
    """Searches by validation AUC, or continues a search for the same time again; returns its last line."""
    parts, file = prepare(data, flags.real_data, flags.work), flags.work / f"{data}.search.flags"
    paths = f"--train_data={parts.train}", f"--eval_data={parts.valid}", f"--model_dir={flags.work / f'{data}.model'}"
    file.write_text("\n".join([*paths, f"--model={SEARCHED_MODEL}", "--best_metric=auc", "--seed=1", ""]))
    given = f"--flagfile={file}", f"--minutes={minutes}", f"--output={flags.work / f'{data}.search'}"
    return sides.last_json(sides.call([*sides.COMMAND, "search", *given], shows_log=True))


def _trained(flags: argparse.Namespace, part: str, data: str, given: list[str]) -> list[dict[str, Any]]:
    """Returns the results of our runs by seed, which are kept in the file of a part below --work."""
    parts, key = prepare(data, flags.real_data, flags.work), {"side": "ours", "data": data, "flags": given}
    run, file = functools.partial(train_and_test, parts), flags.work / f"{part}.jsonl"
    return [once(file, functools.partial(run, seed, *given), **key, seed=seed) for seed in flags.seeds]


def _means(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Returns the means over the runs, and the `spread` of the test AUC, highest minus lowest."""
    means = {name: statistics.mean(run[name] for run in runs) for name in ("valid", "auc", "logloss", "copc")}
    means["spread"] = max(run["auc"] for run in runs) - min(run["auc"] for run in runs)
    return {name: round(value, 6) for name, value in means.items()}


PARTS = {
    "bars": Part("our models by --recipe=bars with FuxiCTR's, on the same rows", ("bars_gap_max",), bars),
    "defaults": Part("defaults with logistic regression", ("defaults_minus_lr_min",), later("quality_defaults")),
    "best": Part("our best models with LightGBM and DIN", ("adult_best_auc", "movielens_history_best_auc"), best),
    "speed": Part(
        "examples per second of sequence models with DeepFM's", (*quality_speed.RATIOS,), quality_speed.measure
    ),
    "zoo": Part(
        "all models of one label on MovieLens, and writes their table into docs/models.md",
        ("zoo_best_auc", "zoo_best_history_auc"),
        later("quality_zoo"),
    ),
    "search": Part("`search` with the settings found by hand", ("search_minus_hand_tuned_min",), search),
}


def main(arguments: list[str] | None = None) -> None:
    parser = sides.parser(__doc__)
    sides.add_parts(parser, PARTS, default=["bars"])
    parser.add_argument("--models", type=sides.words, default=[], help="models of a part; all by default")
    parser.add_argument("--data", type=sides.words, default=[], help="data sets of a part; all by default")
    parser.add_argument("--seeds", type=sides.integers, default=[1, 2, 3], help="seeds of each run; default 1,2,3")
    parser.add_argument("--real_data", type=pathlib.Path, default=REAL_DATA, help="directory of movielens/ and adult/")
    work = pathlib.Path(tempfile.gettempdir()) / "ctr_trainer_accuracy"
    parser.add_argument("--work", type=pathlib.Path, default=work, help="directory of converted data and results")
    sizes_help = "of the part `zoo`: also measure its models of several sizes at these ones, 1 (the smallest) to 5"
    parser.add_argument("--sizes", type=sides.integers, default=[], help=sizes_help)
    parser.add_argument("--search_minutes", type=float, default=60, help="of all searches of the part `search`")
    parser.add_argument("--peer_python", default=sys.executable, help="the Python interpreter that has FuxiCTR")
    flags = parser.parse_args(arguments)
    flags.work.mkdir(parents=True, exist_ok=True)
    sides.run_parts(PARTS, flags)


if __name__ == "__main__":
    main()
