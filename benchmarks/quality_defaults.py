"""The part `defaults` of `model_quality.py`: DeepFM by default settings and a tuned logistic regression, the same rows.

Ours is `train` with no flag but the data, the model, the model directory and the seed, then `evaluate` with no flag but
the data. The regression is scikit-learn's, on one-hot columns and scaled numbers; its C is the one of ten with the best
log loss on the validation part, which ours has for early stopping. Each seed has a split of its own, and a sample of
its own if the data are a sample. The rules of `--recipe=data` were chosen on validation parts of the data sets that are
not in ASIDE, and on other samples of their files. Results stay in defaults.jsonl below --work.
"""

import argparse
import itertools
import json
import pathlib
import statistics
from collections.abc import Callable
from typing import Any

import accuracy_data
import numpy as np
from sides import command

from ctr_trainer.data.convert import convert
from ctr_trainer.data.dataset import FILE
from ctr_trainer.features.spec import FeatureSpec

C = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
METRICS = ("auc", "logloss", "copc")
TRAINED, OTHERS = 8_000, 22_000  # Rows of a sample that are trained on; rows for validation and test.
SPLIT = f"random:{TRAINED / (TRAINED + OTHERS)},{2_000 / (TRAINED + OTHERS)},{20_000 / (TRAINED + OTHERS)}"
RARE = 0.01  # Share of positives of the samples with rare positives.


def run(flags: argparse.Namespace) -> dict[str, float]:
    """Returns `defaults_minus_lr_min`, our least mean test AUC less the regression's; prints a line per data set."""
    results, model = accuracy_data.Results(flags.work / "defaults.jsonl"), (flags.models or ["deepfm"])[0]
    missing = {}
    for data, seed in itertools.product(flags.data or DATA, flags.seeds):
        if not results.has(data=data, seed=seed, model=model):
            parts = prepare(data, seed, pathlib.Path(flags.real_data), flags.work / "defaults" / data / str(seed))
            missing[data, seed] = parts, regression(parts)
    for (data, seed), (parts, theirs) in missing.items():  # After all that is eager, which `train` switches off.
        ours = train(parts, model, seed, parts.train.parents[1] / model)
        results.add(data=data, seed=seed, model=model, **ours, **{f"lr_{name}": each for name, each in theirs.items()})
    differences = [_difference(results, data, model, flags.seeds) for data in flags.data or DATA]
    return {"defaults_minus_lr_min": round(min(differences), 6)}


def _difference(results: accuracy_data.Results, data: str, model: str, seeds: list[int]) -> float:
    """Returns our mean AUC less the regression's, and prints the figures of a data set."""
    lines = [each for each in results.lines if (each["data"], each["model"]) == (data, model) and each["seed"] in seeds]
    found = {name: [each[name] - each[f"lr_{name}"] for each in lines] for name in ("auc", "logloss")}
    means = {name: round(statistics.mean(each[name] for each in lines), 4) for name in _SHOWN}
    shown = {f"{name}_less_lr": [round(value, 4) for value in values] for name, values in found.items()}
    print(json.dumps(dict(data=data, aside=data in ASIDE, **means, **shown)), flush=True)
    return statistics.mean(found["auc"])


_SHOWN = (*METRICS, *(f"lr_{name}" for name in METRICS))


def prepare(data: str, seed: int, real_data: pathlib.Path, work: pathlib.Path) -> accuracy_data.Parts:
    """Returns the parts of a data set, which the first call converts to a directory of `work`."""
    output = work / "parts"
    parts = accuracy_data.Parts(output / "train", output / "valid", output / "test")
    if not (parts.test / FILE).is_file():
        work.mkdir(parents=True, exist_ok=True)
        DATA[data](seed, real_data, work)
    return parts


def train(parts: accuracy_data.Parts, model: str, seed: int, model_dir: pathlib.Path) -> dict[str, float]:
    """Returns METRICS of the test part, by default settings."""
    own = [f"--model={model}", f"--model_dir={model_dir}"]
    command("train", f"--train_data={parts.train}", f"--eval_data={parts.valid}", f"--seed={seed}", *own)
    found = json.loads(command("evaluate", f"--eval_data={parts.test}", f"--model_dir={model_dir}", "--exact_auc"))
    return {name: found[name] for name in METRICS}


def regression(parts: accuracy_data.Parts) -> dict[str, float]:
    """Returns METRICS of the test part, and the C with the best log loss of the validation part."""
    import sklearn.linear_model
    import sklearn.metrics
    import sklearn.preprocessing

    file = parts.train.parent / "arrays.npz"
    accuracy_data.export_arrays(parts, file)
    with np.load(file) as archive:
        arrays = dict(archive)
    scaler = sklearn.preprocessing.StandardScaler().fit(arrays["train/dense"]) if arrays["train/dense"].size else None
    for part in ("train", "valid", "test") if scaler else ():
        arrays[f"{part}/dense"] = scaler.transform(arrays[f"{part}/dense"])
    columns = {part: one_hot(arrays, part) for part in ("train", "valid", "test")}
    tried = []
    for c in C:
        model = sklearn.linear_model.LogisticRegression(C=c, max_iter=1000)
        model.fit(columns["train"], arrays["train/labels"])
        scores = {part: model.predict_proba(columns[part])[:, 1] for part in ("valid", "test")}
        tried.append((sklearn.metrics.log_loss(arrays["valid/labels"], scores["valid"]), c, scores["test"]))
    _, c, scores = min(tried, key=lambda each: each[0])
    labels = arrays["test/labels"]
    return {
        "auc": float(sklearn.metrics.roc_auc_score(labels, scores)),
        "logloss": float(sklearn.metrics.log_loss(labels, scores)),
        "copc": float(labels.sum() / scores.sum()),
        "c": c,
    }


def one_hot(arrays: dict[str, np.ndarray], part: str) -> Any:
    """Returns a sparse float32[n, columns] of the ids and the numbers; id 0 has no column."""
    import scipy.sparse

    blocks = []
    for values, size in zip(arrays[f"{part}/ids"].T, arrays["sizes"], strict=True):
        blocks.append(_shares(values[:, None], int(size)))
    for name in (name.removeprefix("sizes/") for name in arrays if name.startswith("sizes/")):
        blocks.append(_shares(arrays[f"{part}/bag/{name}"], int(arrays[f"sizes/{name}"])))
    return scipy.sparse.hstack([*blocks, scipy.sparse.csr_matrix(arrays[f"{part}/dense"])]).tocsr()


def _shares(values: np.ndarray, size: int) -> Any:
    """Returns a sparse float32[n, size - 1]: a value of a bag of n has 1 / n in its column."""
    import scipy.sparse

    counts = np.maximum((values > 0).sum(1, keepdims=True), 1)
    shares = np.broadcast_to(1 / counts, values.shape).astype(np.float32).ravel()
    rows = np.repeat(np.arange(len(values)), values.shape[1])
    return scipy.sparse.csr_matrix((shares, (rows, values.ravel())), (len(values), size))[:, 1:]


def _adult(seed: int, real_data: pathlib.Path, work: pathlib.Path, share: float | None = None) -> None:
    """Converts a sample of adult.data, cut into training and validation part, and all of adult.test."""
    spec = FeatureSpec.load(accuracy_data.spec_path("adult"))
    lines = _lines(real_data / "adult" / "adult.data")
    sample = _sample(lines, [">50K" in line for line in lines], TRAINED + 2_000, seed, share)
    (work / "sample.data").write_text("\n".join(sample) + "\n", encoding="latin-1")
    convert("csv", str(work / "sample.data"), work / "learn", spec, split="random:0.8,0.2", split_seed=seed)
    (work / "parts").mkdir()
    (work / "learn" / "train").rename(work / "parts" / "train")
    (work / "learn" / "test").rename(work / "parts" / "valid")
    lines = [line for line in _lines(real_data / "adult" / "adult.test") if not line.startswith("|")]
    if share:
        lines = _sample(lines, [">50K" in line for line in lines], 12_000, seed, share)
    (work / "sample.test").write_text("\n".join(lines) + "\n", encoding="latin-1")
    convert("csv", str(work / "sample.test"), work / "parts" / "test", spec)


def _movielens(seed: int, real_data: pathlib.Path, work: pathlib.Path, share: float | None = None) -> None:
    """Converts a sample of the ratings."""
    source = real_data / "movielens"
    lines = _lines(source / "ratings.dat")
    sample = _sample(lines, [int(line.split("::")[2]) >= 4 for line in lines], TRAINED + OTHERS, seed, share)
    (work / "sample").mkdir(exist_ok=True)
    (work / "sample" / "ratings.dat").write_text("\n".join(sample) + "\n", encoding="latin-1")
    for name in ("users.dat", "movies.dat"):
        (work / "sample" / name).write_bytes((source / name).read_bytes())
    spec = FeatureSpec.load(accuracy_data.spec_path("movielens"))
    convert("movielens", str(work / "sample"), work / "parts", spec, split=SPLIT, split_seed=seed)


def _criteo(seed: int, real_data: pathlib.Path, work: pathlib.Path) -> None:
    spec = FeatureSpec.load(accuracy_data.spec_path("criteo"))
    source = str(real_data / "criteo" / "train_head.tsv")
    convert("criteo", source, work / "parts", spec, split="random:0.6,0.15,0.25", split_seed=seed)


def _bundled(name: str, is_positive: Callable[[np.ndarray], np.ndarray]) -> Callable[..., None]:
    """Returns the function that converts a data set of scikit-learn: each number scaled, and its deciles."""

    def write(seed: int, real_data: pathlib.Path, work: pathlib.Path) -> None:
        import sklearn.datasets

        bunch = getattr(sklearn.datasets, f"load_{name}")()
        columns = [f"x{number}" for number in range(bunch.data.shape[1])]
        rows = np.column_stack([bunch.data, is_positive(bunch.target)])
        header = ",".join([*columns, "label"])
        np.savetxt(work / "rows.csv", rows, fmt="%.10g", delimiter=",", header=header, comments="")
        levels = [{"name": f"{column}_level", "column": column, "quantiles": 10, "dim": 16} for column in columns]
        dense = [{"name": column, "transform": "standardize"} for column in columns]
        spec = FeatureSpec.from_dict({"name": name, "label": {"column": "label"}, "dense": dense, "sparse": levels})
        convert("csv", str(work / "rows.csv"), work / "parts", spec, split="random:0.6,0.2,0.2", split_seed=seed)

    return write


def _lines(path: pathlib.Path) -> list[str]:
    return [line for line in path.read_text(encoding="latin-1").splitlines() if line.strip()]


def _sample(lines: list[str], positive: list[bool], rows: int, seed: int, share: float | None) -> list[str]:
    """Returns some lines at random; with a share, so many of them positive."""
    order, is_positive = np.random.default_rng(seed).permutation(len(lines)), np.array(positive)
    if share:
        count = round(share * rows)
        order = np.concatenate([order[is_positive[order]][:count], order[~is_positive[order]][: rows - count]])
    return [lines[place] for place in order[:rows]]


DATA: dict[str, Callable[..., None]] = {
    "adult-8000": _adult,
    "movielens-8000": _movielens,
    "adult-rare": lambda *where: _adult(*where, share=RARE),
    "criteo-6000": _criteo,
    "breast_cancer": _bundled("breast_cancer", lambda target: target == 1),
    "digits": _bundled("digits", lambda target: target % 2 == 1),
    "movielens-rare": lambda *where: _movielens(*where, share=RARE),
    "diabetes": _bundled("diabetes", lambda target: target > np.median(target)),
    "wine": _bundled("wine", lambda target: target == 1),
}
# What no rule was chosen by.
ASIDE = ("movielens-rare", "diabetes", "wine")
