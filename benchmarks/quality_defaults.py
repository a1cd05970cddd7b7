"""The part `defaults` of `model_quality.py`: DeepFM with default settings and a tuned logistic regression, same rows.

docs/accuracy.md describes both sides. DeepFM uses the validation part, by which the regression's C is chosen, for early
stopping. Each seed has its own split, and its own sample if the data is a sample. The rules of `--recipe=data` were
chosen on validation parts of the data sets that are not in ASIDE, and on other samples of their files.
"""

import argparse
import functools
import json
import pathlib
import statistics
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from accuracy_data import Parts, converted, once, spec_path, test, train

from ctr_trainer import BatchReader
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.tensors import dense_transform

C = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
METRICS = ("auc", "logloss", "copc")
TRAINED, OTHERS = 8_000, 22_000  # Training rows of a sample; rows for validation and test.
SPLIT = f"random:{TRAINED / (TRAINED + OTHERS)},{2_000 / (TRAINED + OTHERS)},{20_000 / (TRAINED + OTHERS)}"
RARE = 0.01  # Share of positives in the samples with rare positives.


def measure(flags: argparse.Namespace) -> dict[str, float]:
    """Returns `defaults_minus_lr_min`, the smallest difference of mean test AUCs; prints a line per data set."""
    model, differences = (flags.models or ["deepfm"])[0], []
    for data in flags.data or DATA:
        keys = [{"data": data, "seed": seed, "model": model} for seed in flags.seeds]
        file, run = flags.work / "defaults.jsonl", functools.partial(both, real_data=flags.real_data)
        runs = [once(file, functools.partial(run, **key), **key) for key in keys]
        differences.append(_difference(data, runs))
    return {"defaults_minus_lr_min": round(min(differences), 6)}


def both(data: str, seed: int, model: str, real_data: pathlib.Path) -> dict[str, float]:
    """Returns METRICS of the test part: ours with default settings, and the regression's as `lr_NAME`."""
    with tempfile.TemporaryDirectory() as directory:
        work = pathlib.Path(directory)
        parts = DATA[data](seed, real_data, work)
        train(parts, work / "model", f"--model={model}", f"--seed={seed}")
        ours, theirs = test(work / "model", parts.test), regression(parts)
    return {name: ours[name] for name in METRICS} | {f"lr_{name}": value for name, value in theirs.items()}


def _difference(data: str, runs: list[dict[str, Any]]) -> float:
    """Returns our mean AUC minus the regression's, and prints the figures of a data set."""
    names = (*METRICS, *(f"lr_{name}" for name in METRICS))
    shown: dict[str, Any] = {name: round(statistics.mean(run[name] for run in runs), 4) for name in names}
    less = {name: [run[name] - run[f"lr_{name}"] for run in runs] for name in ("auc", "logloss")}
    shown |= {f"{name}_less_lr": [round(value, 4) for value in values] for name, values in less.items()}
    print(json.dumps({"data": data, "aside": data in ASIDE, **shown}), flush=True)
    return statistics.mean(less["auc"])


def regression(parts: Parts) -> dict[str, float]:
    """Returns METRICS of the test part, and the C with the best log loss on the validation part."""
    import sklearn.linear_model
    import sklearn.metrics

    columns, labels = one_hot(parts)
    tried = []
    for c in C:
        model = sklearn.linear_model.LogisticRegression(C=c, max_iter=1000)
        model.fit(columns["train"], labels["train"])
        scores = {part: model.predict_proba(columns[part])[:, 1] for part in ("valid", "test")}
        tried.append((sklearn.metrics.log_loss(labels["valid"], scores["valid"]), c, scores["test"]))
    _, c, scores = min(tried, key=lambda each: each[0])
    return {
        "auc": float(sklearn.metrics.roc_auc_score(labels["test"], scores)),
        "logloss": float(sklearn.metrics.log_loss(labels["test"], scores)),
        "copc": float(labels["test"].sum() / scores.sum()),
        "c": c,
    }


def one_hot(parts: Parts) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns, by part, a sparse float32[n, columns] with one-hot values and scaled numbers, and the labels.

    Each of k values of an example has 1 / k in its column. Values that the training part lacks have no column.
    """
    import scipy.sparse
    import sklearn.preprocessing

    train = BatchReader(parts.train, 1)
    columns, labels = {}, {}
    for part in ("train", "valid", "test"):
        rows = BatchReader(getattr(parts, part), 1).rows
        (batch,) = BatchReader(getattr(parts, part), rows, shuffle=False, epochs=1).with_statistics(train.statistics)
        (singles,), one = batch.keys.values(), np.ones(rows, np.int64)
        values = [(column, one) for column in singles.T]
        values += [(bag.values, np.diff(bag.splits)) for bag in batch.bags.values()]
        dense = np.asarray(dense_transform(batch.dense, train.spec, train.statistics), np.float32)
        if part == "train":
            vocabularies = [np.setdiff1d(keys, [0]) for keys, _ in values]
            scaler = sklearn.preprocessing.StandardScaler().fit(dense) if dense.size else None
        blocks = [scipy.sparse.csr_matrix(scaler.transform(dense) if scaler else dense)]
        for (keys, lengths), vocabulary in zip(values, vocabularies, strict=True):
            known, of_row = np.isin(keys, vocabulary), np.repeat(np.arange(rows), lengths)
            counts = np.maximum(np.bincount(of_row, known, rows), 1)
            places = of_row[known], np.searchsorted(vocabulary, keys[known])
            shares = (1 / counts[of_row[known]]).astype(np.float32)
            blocks.append(scipy.sparse.csr_matrix((shares, places), (rows, len(vocabulary))))
        columns[part], labels[part] = scipy.sparse.hstack(blocks).tocsr(), batch.labels
    return columns, labels


def _adult(seed: int, real_data: pathlib.Path, work: pathlib.Path, share: float | None = None) -> Parts:
    """Converts a sample of adult.data, for training and validation, and adult.test, sampled if `share` is given."""
    for part, most in (("data", TRAINED + 2_000), ("test", 12_000 if share else None)):
        source = real_data / "adult" / f"adult.{part}"
        (work / f"sample.{part}").write_bytes(_sample(source, lambda line: ">50K" in line, most, seed, share))
    spec, samples = FeatureSpec.load(spec_path("adult")), (work / "sample.data", work / "sample.test")
    return converted("csv", samples[0], spec, work / "parts", "random:0.8,0.2", samples[1], seed)


def _movielens(seed: int, real_data: pathlib.Path, work: pathlib.Path, share: float | None = None) -> Parts:
    """Converts a sample of the ratings."""
    source, sample = real_data / "movielens", work / "sample"
    sample.mkdir()
    for name in ("users.dat", "movies.dat"):
        (sample / name).write_bytes((source / name).read_bytes())
    ratings, rows = source / "ratings.dat", TRAINED + OTHERS
    chosen = _sample(ratings, lambda line: int(line.split("::")[2]) >= 4, rows, seed, share)
    (sample / ratings.name).write_bytes(chosen)
    return converted("movielens", sample, FeatureSpec.load(spec_path("movielens")), work / "parts", SPLIT, seed=seed)


def _criteo(seed: int, real_data: pathlib.Path, work: pathlib.Path) -> Parts:
    spec, source = FeatureSpec.load(spec_path("criteo")), real_data / "criteo" / "train_head.tsv"
    return converted("criteo", source, spec, work / "parts", "random:0.6,0.15,0.25", seed=seed)


def _bundled(
    seed: int, real_data: pathlib.Path, work: pathlib.Path, name: str, is_positive: Callable[[np.ndarray], np.ndarray]
) -> Parts:
    """Converts a data set of scikit-learn; each number is a scaled feature and a decile."""
    import sklearn.datasets

    bunch = getattr(sklearn.datasets, f"load_{name}")()
    columns = {f"x{number}": values for number, values in enumerate(bunch.data.T)}
    pq.write_table(pa.table({**columns, "label": is_positive(bunch.target).astype(int)}), work / "rows.parquet")
    levels = [{"name": f"{column}_level", "column": column, "quantiles": 10, "dim": 16} for column in columns]
    dense = [{"name": column, "transform": "standardize"} for column in columns]
    spec = FeatureSpec.from_dict({"name": name, "label": {"column": "label"}, "dense": dense, "sparse": levels})
    return converted("parquet", work / "rows.parquet", spec, work / "parts", "random:0.6,0.2,0.2", seed=seed)


def _sample(
    source: pathlib.Path, is_positive: Callable[[str], bool], rows: int | None, seed: int, share: float | None
) -> bytes:
    """Returns `rows` random lines of a file, or all; if `share` is given, it is the share of positive ones."""
    lines = [line for line in source.read_text(encoding="latin-1").splitlines() if line.strip() and line[0] != "|"]
    rows, order = rows or len(lines), np.random.default_rng(seed).permutation(len(lines))
    if share:
        positive, count = np.array([is_positive(lines[place]) for place in order]), round(share * rows)
        order = np.concatenate([order[positive][:count], order[~positive][: rows - count]])
    return ("\n".join(lines[place] for place in order[:rows]) + "\n").encode("latin-1")


DATA: dict[str, Callable[..., Parts]] = {
    "adult-8000": _adult,
    "movielens-8000": _movielens,
    "adult-rare": functools.partial(_adult, share=RARE),
    "criteo-6000": _criteo,
    "breast_cancer": functools.partial(_bundled, name="breast_cancer", is_positive=lambda target: target == 1),
    "digits": functools.partial(_bundled, name="digits", is_positive=lambda target: target % 2 == 1),
    "movielens-rare": functools.partial(_movielens, share=RARE),
    "diabetes": functools.partial(_bundled, name="diabetes", is_positive=lambda target: target > np.median(target)),
    "wine": functools.partial(_bundled, name="wine", is_positive=lambda target: target == 1),
}
# The data sets on which no rule was chosen.
ASIDE = ("movielens-rare", "diabetes", "wine")
