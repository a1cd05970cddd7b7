"""Code that the parts of `model_quality.py` and `leaderboard.py` share: real data, training, testing and results."""

import dataclasses
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import sides
from sides import ROOT

from ctr_trainer import FeatureSpec
from ctr_trainer.data.conversion.convert import convert
from ctr_trainer.data.dataset import FILE, open_dataset

CONFIGS = ROOT / "configs"
MOVIELENS = (ROOT / "examples" / "movielens", ROOT / "benchmarks" / "movielens")
REAL_DATA = pathlib.Path(os.environ.get("CTR_TRAINER_TEST_DATA", ROOT.parent / "shared" / "data"))
_OF_A_RUN = ("train_data", "eval_data", "model_dir", "seed")
_NEEDS = {"movielens": ("ratings.dat", "users.dat", "movies.dat"), "adult": ("adult.data", "adult.test")}


@dataclasses.dataclass(frozen=True)
class Parts:
    """The paths of a data set's converted parts."""

    train: pathlib.Path
    valid: pathlib.Path
    test: pathlib.Path


def once(file: pathlib.Path, run: Callable[[], dict[str, Any]], /, **key: Any) -> dict[str, Any]:
    """Returns the figures of a run with the values that identify it, from a file of JSON lines with one line per run.

    If the file has no line with these values, `run` measures the figures, and a line is appended.
    """
    for line in map(json.loads, file.read_text().splitlines() if file.is_file() else []):
        if all(line.get(name) == value for name, value in key.items()):
            return line
    found = key | run()
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as out:
        print(json.dumps(found), file=out)
    return found


def train(parts: Parts, model_dir: pathlib.Path, *flags: str, shows_log: bool = False) -> dict[str, float]:
    """Runs `train` in a separate process; returns `examples_per_sec` and `core_seconds`, its CPU time."""
    before = os.times()
    data = f"--train_data={parts.train}", f"--eval_data={parts.valid}", f"--model_dir={model_dir}"
    sides.call([*sides.COMMAND, "train", *flags, *data], shows_log=shows_log)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return {"examples_per_sec": sides.summary(model_dir)["examples_per_sec"], "core_seconds": round(used, 1)}


def test(model_dir: pathlib.Path, data: pathlib.Path, *flags: str) -> dict[str, float]:
    """Returns the metrics of a part."""
    given = f"--model_dir={model_dir}", f"--eval_data={data}", *flags
    return sides.last_json(sides.call([*sides.COMMAND, "evaluate", *given]))


def train_and_test(parts: Parts, seed: int, *flags: str) -> dict[str, float]:
    """Trains to the best epoch by the AUC of the part `valid`.

    Returns `auc`, `logloss` and `copc` of the part `test`, and `valid`, the AUC of the part `valid`.
    """
    own = f"--seed={seed}", "--summary_steps=0", "--save_checkpoints_steps=0"
    with tempfile.TemporaryDirectory(prefix="ctr_trainer_accuracy_") as directory:
        model_dir = pathlib.Path(directory, "model")
        train(parts, model_dir, *flags, *own)
        valid, tested = (test(model_dir, data, "--checkpoint=best") for data in (parts.valid, parts.test))
    return {name: tested[name] for name in ("auc", "logloss", "copc")} | {"valid": valid["auc"]}


def flagfile(data: str, model: str) -> pathlib.Path:
    """Returns the path of an experiment, such as benchmarks/movielens/time_deepfm.flags."""
    name, _, kind = data.partition("-")
    own = CONFIGS / f"{data.replace('-', '_')}_{model}.flags"
    return _of_movielens(f"{kind}_{model}.flags") if name == "movielens" else own


def _of_movielens(file: str) -> pathlib.Path:
    here, there = (directory / file for directory in MOVIELENS)
    return here if here.is_file() else there


def flags_of(file: pathlib.Path) -> list[str]:
    """Returns the flags of a flagfile, except those that differ for each run."""
    lines = [line for line in file.read_text().splitlines() if line.startswith("--")]
    return [line for line in lines if line[2:].partition("=")[0] not in _OF_A_RUN]


def spec_path(data: str) -> pathlib.Path:
    """Returns the path of the feature spec of a data set."""
    name, _, kind = data.partition("-")
    if name == "movielens":
        own = _of_movielens(f"{kind}.toml")
        return own if own.is_file() else _of_movielens("movielens.toml")
    own = CONFIGS / "features" / f"{data.replace('-', '_')}.toml"
    return own if own.is_file() else CONFIGS / "features" / f"{name}.toml"


def prepare(data: str, real_data: pathlib.Path, work: pathlib.Path) -> Parts:
    """Returns the parts of a data set, which the first call converts below `work`.

    MovieLens is split by time into 80, 10 and 10 percent; it also exists with histories of liked movies or of all
    ratings. The training file of Adult is split at random into 90 and 10 percent.
    """
    source, spec_file = real_data / data.partition("-")[0], spec_path(data)
    missing = [name for name in _NEEDS[source.name] if not (source / name).is_file()]
    if missing:
        sys.exit(f"{source} has no {', '.join(missing)}: download the data set there, or name its parent: --real_data")
    spec = FeatureSpec.load(spec_file)
    output = work / data
    if source.name == "movielens":
        file = work / "movielens.parquet"
        if not file.is_file():
            sides.call([sys.executable, MOVIELENS[0] / "prepare.py", source, file])
        parts = converted("parquet", file, spec, output, "time:0.8,0.1,0.1:timestamp")
    else:
        parts = converted("csv", source / "adult.data", spec, output, "random:0.9,0.1", source / "adult.test")
    if open_dataset(parts.train).spec != spec:
        sys.exit(f"{output} was converted with another {spec_file.name}: remove {work}, and the results with it")
    return parts


def converted(
    form: str,
    source: pathlib.Path,
    spec: FeatureSpec,
    output: pathlib.Path,
    split: str,
    test_source: pathlib.Path | None = None,
) -> Parts:
    """Converts files to three parts, unless `output` has them; `test_source` is a separate file of the test part."""
    learn, names = (output / "learn", ("train", "test")) if test_source else (output, ("train", "valid"))
    parts = Parts(learn / names[0], learn / names[1], output / "test")
    if not (parts.test / FILE).is_file():
        convert(form, str(source), learn, spec, split=split)
        if test_source:
            convert(form, str(test_source), parts.test, spec)
    return parts
