"""The data sets of `leaderboard.py` that are at hand: MovieLens and Adult by their flagfiles, and a sample of Criteo.

The first rows of Criteo's challenge take the way of Criteo_x4: they are split at random into files of its form, and
brought into the leaderboard's form.
"""

import pathlib
import sys

import accuracy_data
import leaderboard_data
import numpy as np

NAMES = ("movielens", "adult", "criteo_sample")
_HEADER = ",".join(["Label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))])
_SHARES, _SEED = {"train": 0.7, "valid": 0.1, "test": 0.2}, 2018


def prepare(
    name: str, path: pathlib.Path, work: pathlib.Path, model: str
) -> tuple[accuracy_data.Parts, tuple[str, ...]]:
    """Returns the converted parts, and the flags of a model."""
    if name != "criteo_sample":
        data = {"movielens": "movielens-random"}.get(name, name)
        flagfile = accuracy_data.ROOT / "configs" / f"{name}_{model}.flags"
        if not flagfile.is_file():
            sys.exit(f"{flagfile}: there is no such flagfile, so {model} has no settings that were chosen on {name}")
        return accuracy_data.prepare(data, path, work), (f"--flagfile={flagfile}",)
    data, files = leaderboard_data.load("criteo_x4"), work / "files"
    if not (files / "test.csv").is_file():
        _split(path / "criteo" / "train_head.tsv", files)
    parts = leaderboard_data.prepare(data, files, work, model, choose_on_test=False, any_files=True)
    return parts, (f"--flagfile={leaderboard_data.CONFIGS / 'criteo_sample.flags'}",)


def _split(source: pathlib.Path, files: pathlib.Path) -> None:
    if not source.is_file():
        sys.exit(f"{source}: there is no such file; --path=DIR is the directory that has criteo/train_head.tsv")
    lines = source.read_text().splitlines()
    part_of = np.random.default_rng(_SEED).choice(len(_SHARES), len(lines), p=list(_SHARES.values()))
    files.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(_SHARES):
        rows = [lines[row].replace("\t", ",") for row in np.flatnonzero(part_of == number)]
        (files / f"{part}.csv").write_text("\n".join([_HEADER, *rows, ""]))
