"""What flags of a training cost in AUC, on the demo and on MovieLens, by seed; benchmarks print it."""

import itertools
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Sequence

import sides
from model_quality import REAL_DATA

MOVIELENS = sides.ROOT / "examples/movielens"


def auc_changes(flags: Sequence[str], seeds: Sequence[int], models: Sequence[str] = ("deepfm",)) -> dict[str, list]:
    """Returns by data set and model, then by seed, the test AUC with the flags minus that without them."""
    with tempfile.TemporaryDirectory() as directory:
        sides.make_synthetic(directory)
        own = sides.DEMO, f"--train_data={directory}/train", "--eval_data="
        sets = {"demo": (own, f"{directory}/test")}
        raw, data = f"{directory}/movielens.parquet", f"{directory}/movielens"
        sides.call([sys.executable, MOVIELENS / "prepare.py", REAL_DATA / "movielens", raw])
        spec = f"--feature_spec={MOVIELENS / 'movielens.toml'}", "--split=random:0.8,0.1,0.1"
        sides.call([*sides.COMMAND, "convert", "--format=parquet", f"--input={raw}", f"--output={data}", *spec])
        parts = f"--train_data={data}/train", f"--eval_data={data}/valid"
        sets["movielens"] = (f"--flagfile={MOVIELENS / 'deepfm.flags'}", *parts), f"{data}/test"
        return {
            f"{name} {model}": _changes((*own, f"--model={model}"), flags, seeds, data)
            for (name, (own, data)), model in itertools.product(sets.items(), models)
        }


def means(changes: dict[str, list]) -> dict[str, float]:
    """Returns the mean over the seeds of each data set and model."""
    return {name: round(statistics.mean(each), 5) for name, each in changes.items()}


def _changes(own: Sequence[str], flags: Sequence[str], seeds: Sequence[int], data: str) -> list[float]:
    found: dict[bool, list[float]] = {False: [], True: []}
    for number, (seed, changed) in enumerate(itertools.product(seeds, found), 1):
        with tempfile.TemporaryDirectory() as model_dir:
            more = *(flags if changed else ()), f"--seed={seed}", f"--model_dir={model_dir}"
            sides.call([*sides.COMMAND, "train", *own, *more])
            found[changed].append(sides.test(pathlib.Path(model_dir), pathlib.Path(data))["auc"])
        print(f"training {number} of {2 * len(seeds)}: {found[changed][-1]:.5f}", file=sys.stderr, flush=True)
    return [round(with_flags - without, 5) for without, with_flags in zip(*found.values(), strict=True)]
