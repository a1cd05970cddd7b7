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
import importlib
import json
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import sides
from accuracy_data import Parts, Results, default_directory, export_arrays, flagfile, flags_of, prepare, train_and_test
from sides import Part

# Chosen from a grid by FuxiCTR's validation AUC. FuxiCTR embeds numbers and we do not, so Adult has them as categories.
BARS_L2 = {"movielens-random": 1e-4, "adult-categories": 1e-5}
BARS_MODELS = ("deepfm", "dcn_v2", "xdeepfm", "autoint", "fibinet", "masknet", "final_mlp", "pnn")
# Params of the models whose default variant differs from FuxiCTR's.
BARS_PARAMS = {"fibinet": ("--model_params=bilinear=interaction",)}
# The Criteo sample has 10,000 rows, of which 1,000 test: an AUC there has a standard error of 0.02.
SEARCHED, SEARCHED_MODEL = ("movielens-random", "adult"), "deepfm"


# The data sets and models from whose flagfiles the part `best` chooses, by figure; see `flagfile`.
BEST = {
    "adult_best_auc": {"adult": ("dcn_v2", "deepfm", "lr", "tabm", "wide_deep"), "adult-pieces": ("tabm",)},
    "movielens_history_best_auc": {"movielens-history": ("din", "onetrans"), "movielens-means": ("din",)},
}


def bars(flags: argparse.Namespace) -> dict[str, float]:
    """Returns `bars_gap_max`, the largest shortfall of our mean test AUC; prints a line for each model and data set."""
    results, gaps = Results(flags.work / "bars.jsonl"), []
    for data in flags.data or BARS_L2:
        parts = prepare(data, flags.real_data, flags.work)
        for model in flags.models or BARS_MODELS:
            peer = _fuxictr(results, data, parts, model, flags)
            ours = _trained(results, data, parts, flags.seeds, bars_flags(data, model))
            aucs = {side: {run["seed"]: run["auc"] for run in runs} for side, runs in (("peer", peer), ("ours", ours))}
            gaps.append(_mean(peer, "auc") - _mean(ours, "auc"))
            print(json.dumps({"data": data, "model": model, **aucs, "gap": round(gaps[-1], 6)}), flush=True)
    return {"bars_gap_max": round(max(gaps), 6)}


def bars_flags(data: str, model: str) -> list[str]:
    """Returns the flags of our run, except paths and seed."""
    own = [f"--model={model}", f"--embedding_l2={BARS_L2[data]}", *BARS_PARAMS.get(model, ())]
    return ["--recipe=bars", *own, "--batch_size=2048", "--hidden_units=256,128,64"]


def _fuxictr(results: Results, data: str, parts: Parts, model: str, flags: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns FuxiCTR's results by seed, which `accuracy_fuxictr.py` measures with --peer_python."""
    key = {"side": "peer", "data": data, "model": model, "library": "FuxiCTR", "setting": BARS_L2[data]}
    if missing := [seed for seed in flags.seeds if not results.of(**key, seed=seed)]:
        arrays = flags.work / f"{data}-arrays.npz"
        export_arrays(parts, arrays)
        command = [flags.peer_python, sides.HERE / "accuracy_fuxictr.py", arrays, model, BARS_L2[data], *missing]
        for line in sides.call(command, shows_log=True).splitlines():
            results.add(**key | json.loads(line))
    return [results.of(**key, seed=seed)[0] for seed in flags.seeds]


def best(flags: argparse.Namespace) -> dict[str, float]:
    """Returns, by figure, the mean test AUC of the flagfile with the best validation AUC; prints a line per data set.

    `--data=adult` selects both feature specs of Adult.
    """
    results, found = Results(flags.work / "best.jsonl"), dict[str, list[dict[str, float]]]()
    for figure, data, known in [(figure, *each) for figure, data_sets in BEST.items() for each in data_sets.items()]:
        models = [model for model in known if not flags.models or model in flags.models]
        if not models or (flags.data and not {data, data.partition("-")[0]} & {*flags.data}):
            continue
        parts = prepare(data, flags.real_data, flags.work)
        means = {model: _by_hand(results, data, parts, model, flags.seeds)[0] for model in models}
        print(json.dumps({"data": data, "means": means}), flush=True)
        found.setdefault(figure, []).extend(means.values())
    return {figure: max(means, key=lambda each: each["valid"])["auc"] for figure, means in found.items()}


def search(flags: argparse.Namespace) -> dict[str, float]:
    """Returns `search_minus_hand_tuned_min`, the smallest difference of mean test AUCs; prints a line per data set."""
    results, gains = Results(flags.work / "search.jsonl"), []
    data_sets = flags.data or SEARCHED
    for data in data_sets:
        parts = prepare(data, flags.real_data, flags.work)
        found = _searched(data, parts, flags.work, flags.search_minutes / len(data_sets))
        runs = _trained(results, data, parts, flags.seeds, flags_of(pathlib.Path(found["flagfile"])))
        means, by_hand = _by_hand(results, data, parts, SEARCHED_MODEL, flags.seeds)
        gains.append(_mean(runs, "auc") - means["auc"])
        gain = {"data": data, "search": found, "gain": round(gains[-1], 6)}
        print(json.dumps({**gain, "found": runs, "by_hand": by_hand}), flush=True)
    return {"search_minus_hand_tuned_min": round(min(gains), 6)}


def _searched(data: str, parts: Parts, work: pathlib.Path, minutes: float) -> dict[str, Any]:
    """Searches by validation AUC, or continues a search for the same time again; returns its last line."""
    paths = f"--train_data={parts.train}", f"--eval_data={parts.valid}", f"--model_dir={work / f'{data}.model'}"
    file = work / f"{data}.search.flags"
    file.write_text("\n".join([*paths, f"--model={SEARCHED_MODEL}", "--best_metric=auc", "--seed=1", ""]))
    given = f"--flagfile={file}", f"--minutes={minutes}", f"--output={work / f'{data}.search'}"
    return sides.last_json(sides.call([*sides.COMMAND, "search", *given], shows_log=True))


def _by_hand(
    results: Results, data: str, parts: Parts, model: str, seeds: list[int]
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Returns the means of a flagfile's runs with the `spread` of the test AUC, highest minus lowest, and the runs."""
    runs = _trained(results, data, parts, seeds, flags_of(flagfile(data, model)))
    means = {name: round(_mean(runs, name), 6) for name in ("valid", "auc", "logloss", "copc")}
    aucs = [each["auc"] for each in runs]
    return {**means, "spread": round(max(aucs) - min(aucs), 6)}, runs


def _trained(results: Results, data: str, parts: Parts, seeds: list[int], given: list[str]) -> list[dict[str, Any]]:
    """Returns the results of our runs by seed."""
    key = {"side": "ours", "data": data, "flags": given}
    return [results.once(functools.partial(train_and_test, parts, seed, *given), **key, seed=seed) for seed in seeds]


def _mean(runs: list[dict[str, Any]], name: str) -> float:
    return statistics.mean(run[name] for run in runs)


def _of(module: str) -> Callable[[argparse.Namespace], dict[str, Any]]:
    """Returns the function that measures the part in a module; it imports the module when it is called."""
    return lambda flags: importlib.import_module(module).run(flags)


PARTS = {
    "bars": Part("our models by --recipe=bars with FuxiCTR's, on the same rows", ("bars_gap_max",), bars),
    "defaults": Part("default settings with logistic regression", ("defaults_minus_lr_min",), _of("quality_defaults")),
    "best": Part("our best models with LightGBM and DIN", ("adult_best_auc", "movielens_history_best_auc"), best),
    "speed": Part(
        "examples per second of sequence models with DeepFM's",
        (
            *("din_over_deepfm_speed", "dien_over_deepfm_speed", "bst_over_deepfm_speed"),
            *("din_over_deepfm_speed_50", "sdim_1000_over_din_50_speed", "sdim_1000_over_sdim_50_speed"),
        ),
        _of("quality_speed"),
    ),
    "zoo": Part(
        "all models of one label on MovieLens, and writes their table into docs/models.md",
        ("zoo_best_auc", "zoo_best_history_auc"),
        _of("quality_zoo"),
    ),
    "search": Part("`search` with the settings found by hand", ("search_minus_hand_tuned_min",), search),
}


def main(arguments: list[str] | None = None) -> None:
    parser = sides.parser(__doc__)
    sides.add_parts(parser, PARTS, default=["bars"])
    parser.add_argument("--models", type=sides.words, default=[], help="models of a part; all by default")
    parser.add_argument("--data", type=sides.words, default=[], help="data sets of a part; all by default")
    parser.add_argument("--seeds", type=sides.integers, default=[1, 2, 3], help="seeds of each run; default 1,2,3")
    parser.add_argument(
        "--real_data", type=pathlib.Path, default=default_directory(), help="directory of movielens/ and adult/"
    )
    work = pathlib.Path(tempfile.gettempdir()) / "ctr_trainer_accuracy"
    parser.add_argument("--work", type=pathlib.Path, default=work, help="directory of converted data and results")
    parser.add_argument(
        "--sizes",
        type=sides.integers,
        default=[],
        help="of the part `zoo`: also measure its models of several sizes at these ones, 1 (the smallest) to 5",
    )
    parser.add_argument("--search_minutes", type=float, default=60, help="of all searches of the part `search`")
    parser.add_argument("--peer_python", default=sys.executable, help="the Python interpreter that has FuxiCTR")
    flags = parser.parse_args(arguments)
    flags.work.mkdir(parents=True, exist_ok=True)
    sides.run_parts(PARTS, flags)


if __name__ == "__main__":
    main()
