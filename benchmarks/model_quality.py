"""Measures the quality of our models by the flagfiles of public data.

    python benchmarks/model_quality.py --parts=best --data=adult --models=tabm --seeds=1,2,3

docs/accuracy.md describes what each part compares. Results are kept below --work, and a run that has a result is not
repeated. The last line is a JSON object. In it, a figure that was not measured is null, and `failed` lists the parts
that failed.
"""

import argparse
import functools
import json
import pathlib
import statistics
import tempfile
from typing import Any

import sides
from accuracy_data import REAL_DATA, flagfile, flags_of, once, prepare, train_and_test
from sides import Part

# The data sets and models from whose flagfiles the part `best` chooses, by figure; see `flagfile`.
BEST = {
    "adult_best_auc": {"adult": ("dcn_v2", "deepfm", "lr", "tabm", "wide_deep"), "adult-pieces": ("tabm",)},
    "movielens_history_best_auc": {"movielens-history": ("din", "onetrans"), "movielens-means": ("din",)},
}


def best(flags: argparse.Namespace) -> dict[str, float]:
    """Returns, by figure, the mean test AUC of the flagfile with the best validation AUC; prints a line per data set.

    `--data=adult` selects both feature specs of Adult.
    """
    found = dict[str, list[dict[str, float]]]()
    for figure, data, known in [(figure, *each) for figure, data_sets in BEST.items() for each in data_sets.items()]:
        models = [model for model in known if not flags.models or model in flags.models]
        if not models or (flags.data and not {data, data.partition("-")[0]} & {*flags.data}):
            continue
        means = {model: _means(_trained(flags, data, flags_of(flagfile(data, model)))) for model in models}
        print(json.dumps({"data": data, "means": means}), flush=True)
        found.setdefault(figure, []).extend(means.values())
    return {figure: max(means, key=lambda each: each["valid"])["auc"] for figure, means in found.items()}


def _trained(flags: argparse.Namespace, data: str, given: list[str]) -> list[dict[str, Any]]:
    """Returns the results of our runs by seed, which are kept in best.jsonl below --work."""
    parts, key = prepare(data, flags.real_data, flags.work), {"side": "ours", "data": data, "flags": given}
    run, file = functools.partial(train_and_test, parts), flags.work / "best.jsonl"
    return [once(file, functools.partial(run, seed, *given), **key, seed=seed) for seed in flags.seeds]


def _means(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Returns the means over the runs, and the `spread` of the test AUC, highest minus lowest."""
    means = {name: statistics.mean(run[name] for run in runs) for name in ("valid", "auc", "logloss", "copc")}
    means["spread"] = max(run["auc"] for run in runs) - min(run["auc"] for run in runs)
    return {name: round(value, 6) for name, value in means.items()}


PARTS = {
    "best": Part("our best models with LightGBM and DIN", ("adult_best_auc", "movielens_history_best_auc"), best),
}


def main(arguments: list[str] | None = None) -> None:
    parser = sides.parser(__doc__)
    sides.add_parts(parser, PARTS, default=[*PARTS])
    parser.add_argument("--models", type=sides.words, default=[], help="models of a part; all by default")
    parser.add_argument("--data", type=sides.words, default=[], help="data sets of a part; all by default")
    parser.add_argument("--seeds", type=sides.integers, default=[1, 2, 3], help="seeds of each run; default 1,2,3")
    parser.add_argument("--real_data", type=pathlib.Path, default=REAL_DATA, help="directory of movielens/ and adult/")
    work = pathlib.Path(tempfile.gettempdir()) / "ctr_trainer_accuracy"
    parser.add_argument("--work", type=pathlib.Path, default=work, help="directory of converted data and results")
    flags = parser.parse_args(arguments)
    flags.work.mkdir(parents=True, exist_ok=True)
    sides.run_parts(PARTS, flags)


if __name__ == "__main__":
    main()
