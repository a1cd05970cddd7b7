"""The part `best` of `model_quality.py`: the best of our flagfiles on Adult and on MovieLens with histories.

Each flagfile in configs/ of a data set trains with each seed. The validation AUC chooses one of them, and its mean test
AUC is the figure. The rows of MovieLens come with two feature specs, and so do those of Adult, whose second one has the
numbers in pieces: one flagfile is chosen of those of both. `--data=adult` takes both specs, and `--models` some of the
models. Results stay in best.jsonl below --work.
"""

import argparse
import json
import statistics

import accuracy_data

# The data sets and the keys of their figures.
DATA = {
    "adult": "adult_best_auc",
    "adult-pieces": "adult_best_auc",
    "movielens-history": "movielens_history_best_auc",
    "movielens-means": "movielens_history_best_auc",
}


def run(flags: argparse.Namespace) -> dict[str, float]:
    """Returns the figures by key; prints a line for each flagfile."""
    results = accuracy_data.Results(flags.work / "best.jsonl")
    chosen: dict[str, dict[str, float]] = {}
    for data in DATA:
        models = [model for model in models_of(data) if not flags.models or model in flags.models]
        if not models or (flags.data and not {data, data.partition("-")[0]} & {*flags.data}):
            continue
        parts = accuracy_data.prepare(data, flags.real_data, flags.work)
        means = {model: _means(results, data, parts, model, flags.seeds) for model in models}
        best = max(means, key=lambda model: means[model]["valid"])
        chosen[DATA[data]] = max(chosen.get(DATA[data], means[best]), means[best], key=lambda of: of["valid"])
        print(json.dumps({"data": data, "best": best, "means": means}), flush=True)
    return {key: round(of["auc"], 6) for key, of in chosen.items()}


def models_of(data: str) -> list[str]:
    """Returns the models that have a flagfile for a data set, such as `din` of configs/movielens_history_din.flags."""
    import accuracy_ours  # It imports TensorFlow.

    prefix, *others = (accuracy_ours.flagfile(each, "").stem for each in (data, *DATA))
    longer = tuple(other for other in others if len(other) > len(prefix))  # `adult_pieces_` is of another data set.
    stems = [path.stem for path in accuracy_ours.CONFIGS.glob(f"{prefix}*.flags")]
    return sorted(stem.removeprefix(prefix) for stem in stems if not stem.startswith(longer))


def _means(
    results: accuracy_data.Results, data: str, parts: accuracy_data.Parts, model: str, seeds: list[int]
) -> dict[str, float]:
    """Returns the means of the metrics over the seeds, and the `spread` of the test AUC, highest less lowest."""
    import accuracy_ours

    runs = []
    for seed in seeds:
        key = dict(side="ours", data=data, model=model, seed=seed, config=accuracy_ours.fingerprint(data, model))
        runs.append(results.once(key, accuracy_ours.run, data, parts, model, seed))
    means = {
        name: round(statistics.mean(each[name] for each in runs), 6) for name in ("valid", "auc", "logloss", "copc")
    }
    aucs = [each["auc"] for each in runs]
    return {**means, "spread": round(max(aucs) - min(aucs), 6)}
