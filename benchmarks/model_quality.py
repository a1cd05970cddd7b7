"""Measures the quality of the defaults, from a raw file to the test score, next to what a person would use instead.

    python benchmarks/model_quality.py --parts=tables --seeds=1,2,3
    python benchmarks/model_quality.py --parts=tables --tables_dir=my_tables --data=churn

A TOML or JSON file below --tables_dir describes the table of its name:

    file = "churn.csv"      # CSV or Parquet, next to the description, or a folder of such files
    label = "Churn"         # column; without a header, the columns are c1, c2, ...
    test = "test.csv"       # optional: the rows to test on; else 70% are trained on, 10% validate and 20% test
    split = "random"        # or "time:COLUMN", by the order of a column

Ours is `convert --infer` and `train`. The others are scikit-learn's logistic regression and LightGBM, on the same rows:
pip install 'ctr_trainer[peers]'. Results are kept below --work, and no run is repeated. The last line is JSON, in which
a figure that was not measured is null, and `failed` lists the parts that failed.
"""

import argparse
import functools
import importlib.util
import json
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import sides
from sides import Part, Parts, once, test, train

from ctr_trainer.data.conversion.convert import convert
from ctr_trainer.data.conversion.csv_header import see_form
from ctr_trainer.data.conversion.infer import infer
from ctr_trainer.features.columns import Label
from ctr_trainer.features.toml import tomllib

if TYPE_CHECKING:
    import pandas as pd

REAL_DATA = pathlib.Path(os.environ.get("CTR_TRAINER_TEST_DATA", sides.ROOT.parent / "shared" / "data"))
# The tables of --real_data, described as above.
REAL = {
    "adult": {"file": "adult/adult.data", "test": "adult/adult.test", "label": "c15"},
    "criteo": {"file": "criteo/train_head.tsv", "label": "c1"},
}
WORK = pathlib.Path(tempfile.gettempdir()) / "ctr_trainer_accuracy"
C = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_MISSING = ("", "?", "NA", "N/A", "nan", "NaN", "NULL", "null", "None", "\\N")
_RARE = 0.01  # The COPC of a decile with a smaller share of the clicks is not counted.


class Table(NamedTuple):
    file: pathlib.Path
    label: str
    test: pathlib.Path | None = None
    split: str = "random"


def tables(flags: argparse.Namespace) -> dict[str, Any]:
    """Returns the figures of the tables, means over the seeds; prints a line per table."""
    if missing := [name for name in ("lightgbm", "pandas", "sklearn") if importlib.util.find_spec(name) is None]:
        raise SystemExit(f"there is no {missing[0]}: pip install 'ctr_trainer[peers]'")
    found = dict[str, dict[str, float]]()
    for name, table in tables_of(flags).items():
        run, file = functools.partial(compare, table), flags.work / "tables.jsonl"
        runs = [once(file, functools.partial(run, seed), table=name, seed=seed) for seed in flags.seeds]
        keys = [key for key in runs[0] if key not in ("table", "seed")]
        found[name] = {key: round(statistics.mean(run[key] for run in runs), 4) for key in keys}
        print(json.dumps({"table": name, **found[name]}), flush=True)
    less = [each["ours"] - max(each["logistic"], each["lightgbm"]) for each in found.values()]
    mean, least = round(statistics.mean(less), 4), round(min(less), 4)
    return {"tables": found, "tables_minus_best_mean": mean, "tables_minus_best_min": least}


def tables_of(flags: argparse.Namespace) -> dict[str, Table]:
    """Returns the tables below --tables_dir, by default those of --real_data; --data chooses some by name."""
    files = sorted(flags.tables_dir.rglob("*")) if flags.tables_dir else []
    found = {file.stem: file for file in files if file.suffix in (".toml", ".json")} if flags.tables_dir else REAL
    if unknown := {*flags.data} - {*found} or not found:
        where = flags.tables_dir or flags.real_data
        raise SystemExit(f"{where}: no description of a table {unknown or ''}; there are {[*found]}")
    return {name: described(found[name], flags.real_data) for name in flags.data or found}


def described(keys: pathlib.Path | Mapping[str, str], directory: pathlib.Path) -> Table:
    """Returns the table that a file describes, or keys with paths relative to a directory."""
    where = keys if isinstance(keys, pathlib.Path) else directory
    try:
        if isinstance(keys, pathlib.Path):
            directory, text = keys.parent, keys.read_text(encoding="utf-8")
            keys = dict((tomllib.loads if keys.suffix == ".toml" else json.loads)(text))
        given: Any = {key: directory / text if key in ("file", "test") else text for key, text in keys.items()}
        table = Table(**given)
    except (ValueError, TypeError, AttributeError) as error:
        raise SystemExit(f"{where}: {error}; --help says how to describe a table") from None
    if missing := [path for path in (table.file, table.test) if path and not path.exists()]:
        raise SystemExit(f"{where}: there is no {missing[0]}")
    return table


def compare(table: Table, seed: int) -> dict[str, float]:
    """Returns each side's test AUC and seconds from raw rows, `copc` and `worst_decile_copc` of ours, for a seed."""
    import pandas as pd

    with tempfile.TemporaryDirectory(prefix="ctr_trainer_tables_") as directory:
        work, parts = pathlib.Path(directory), split(table, seed)
        paths = [work / name for name in ("train", "valid", "test")]
        form = "csv" if all(map(pd.api.types.is_string_dtype, parts[0].dtypes)) else "parquet"
        for rows, path in zip(parts, paths, strict=True):
            rows.to_csv(f"{path}.csv", index=False) if form == "csv" else rows.to_parquet(f"{path}.parquet")
        began = time.perf_counter()
        spec = infer(f"{paths[0]}.{form}", work / "spec.toml", label=table.label)
        for path in paths:
            convert(form, f"{path}.{form}", path, spec, progress=False)
        train(Parts(*paths), work / "model", f"--seed={seed}")
        seconds = time.perf_counter() - began
        ours = test(work / "model", work / "test", f"--output={work / 'metrics.json'}")
        deciles = json.loads((work / "metrics.json").read_text())["reliability"]
    y = [labels_of(rows[table.label], spec.label) for rows in parts]
    known = [each["copc"] for each in deciles if each["weight"] * each["real_mean"] > _RARE * y[2].sum()]
    worst = max(known, key=lambda copc: abs(np.log(copc)))
    others = peers(*features(pd.concat(parts).drop(columns=table.label)), y, seed)
    return {"ours": ours["auc"], **others, "ours_seconds": seconds, "copc": ours["copc"], "worst_decile_copc": worst}


def split(table: Table, seed: int) -> "list[pd.DataFrame]":
    """Returns the rows of the parts train, valid and test."""
    rows, (kind, _, by) = read(table.file), table.split.partition(":")
    wanted = {table.label, by} if kind == "time" else {table.label}
    if (kind, bool(by)) not in (("random", False), ("time", True)) or not wanted <= {*rows}:
        raise SystemExit(f"{table.file}, split {table.split!r}: needs {wanted}; the columns are {[*rows]}")
    order = np.random.default_rng(seed).permutation(len(rows))
    order = np.argsort(rows[by].astype(float), kind="stable") if by else order
    cuts = [round(share * len(rows)) for share in ((0.9,) if table.test else (0.7, 0.8))]
    return [rows.iloc[places] for places in np.split(order, cuts)] + ([read(table.test)] if table.test else [])


def read(path: pathlib.Path) -> "pd.DataFrame":
    """Returns the rows of a file or folder; columns of CSV are texts, without the period that ends adult.test's."""
    import pandas as pd

    files = sorted(path.iterdir()) if path.is_dir() else [path]
    if files[0].suffix == ".parquet":
        return pd.concat(map(pd.read_parquet, files), ignore_index=True)
    form, names = see_form(str(files[0]), "utf-8")
    how = {"sep": form.delimiter, "names": names, "header": 0 if form.header else None, "skipinitialspace": True}
    rows = pd.concat((pd.read_csv(file, dtype=str, keep_default_na=False, **how) for file in files), ignore_index=True)
    return rows.apply(lambda values: values.str.rstrip("."))


def labels_of(values: "pd.Series", label: Label) -> np.ndarray:
    """Returns the labels as the inferred spec reads them, bool[n]."""
    if label.positive is not None:
        return (values == label.positive).to_numpy()
    return values.astype(float).to_numpy() >= (1 if label.threshold is None else label.threshold)


def features(rows: "pd.DataFrame") -> "tuple[pd.DataFrame, list[str]]":
    """Returns (numbers, and all other columns as categories; the names of the categories and whole numbers)."""
    import pandas as pd

    found, discrete = {}, []
    for name, values in rows.items():
        try:
            found[name] = pd.to_numeric(values.where(~values.isin(_MISSING))).astype(float)
        except (TypeError, ValueError):
            found[name] = values.astype(str).astype("category")
        if found[name].dtype != float or not (found[name] % 1 > 0).any():
            discrete.append(name)
    return pd.DataFrame(found), discrete


def peers(x: "pd.DataFrame", discrete: list[str], y: list[np.ndarray], seed: int) -> dict[str, float]:
    """Returns the test AUC of each peer, in the variant of the best validation AUC, and its seconds.

    Logistic regression takes scaled numbers, and texts and whole numbers one-hot, with the best C. LightGBM, stopped
    early, takes whole numbers as numbers or as categories.
    """
    from lightgbm import LGBMClassifier, early_stopping
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    ends = np.cumsum([len(own) for own in y])
    parts = [x.iloc[end - len(own) : end] for own, end in zip(y, ends, strict=True)]

    def scores(model: Any, of: list[Any]) -> list[float]:
        """Returns the AUC of the parts valid and test."""
        return [float(roc_auc_score(y[part], model.predict_proba(of[part])[:, 1])) for part in (1, 2)]

    began = time.perf_counter()
    one_hot = OneHotEncoder(min_frequency=2, handle_unknown="infrequent_if_exist")
    scaled = make_pipeline(SimpleImputer(), StandardScaler()), [*x.select_dtypes("number")]
    encoder = make_column_transformer((one_hot, discrete), scaled).fit(parts[0])
    encoded = [encoder.transform(part) for part in parts]
    tried = {"logistic": [scores(LogisticRegression(C=c, max_iter=300).fit(encoded[0], y[0]), encoded) for c in C]}
    tried["lightgbm"], seconds = [], {"logistic_seconds": time.perf_counter() - began}
    began = time.perf_counter()
    for texts in ([], discrete):
        of = [part.astype({name: x[name].astype("category").dtype for name in texts}) for part in parts]
        model = LGBMClassifier(n_estimators=3000, learning_rate=0.05, random_state=seed, n_jobs=2, verbose=-1)
        stop = early_stopping(100, verbose=False)
        model.fit(of[0], y[0], eval_set=[(of[1], y[1])], eval_metric="auc", callbacks=[stop])
        tried["lightgbm"].append(scores(model, of))
    best = {name: max(found)[1] for name, found in tried.items()}
    return best | seconds | {"lightgbm_seconds": time.perf_counter() - began}


KEYS = ("tables", "tables_minus_best_mean", "tables_minus_best_min")
PARTS = {"tables": Part("our defaults with logistic regression and LightGBM", KEYS, tables)}


def main(arguments: list[str] | None = None) -> None:
    parser = sides.parser(__doc__)
    sides.add_parts(parser, PARTS, default=[*PARTS])
    about = "directory of tables that are described; by default the tables of --real_data"
    parser.add_argument("--tables_dir", type=pathlib.Path, help=about)
    parser.add_argument("--data", type=sides.words, default=[], help="names of tables; all by default")
    parser.add_argument("--seeds", type=sides.integers, default=[1, 2, 3], help="seeds of each run; default 1,2,3")
    parser.add_argument("--real_data", type=pathlib.Path, default=REAL_DATA, help="directory of adult/ and criteo/")
    parser.add_argument("--work", type=pathlib.Path, default=WORK, help="directory of results")
    flags = parser.parse_args(arguments)
    flags.work.mkdir(parents=True, exist_ok=True)
    sides.run_parts(PARTS, flags)


if __name__ == "__main__":
    main()
