"""The README and the pages about the Python API: their steps and examples are run as they stand."""

import re

import numpy as np
import pyarrow.parquet as pq
import pytest

from ctr_trainer import cli
from ctr_trainer.features.toml import tomllib
from tests import small
from tests.docs import page

README = (page.ROOT / "README.md").read_text()


def test_it_is_short():
    assert len(README.splitlines()) < 130  # Of at most 120 columns, but for tables.


def test_each_dependency_is_named_with_its_reason():
    table = README.partition("## What it is built on")[2]
    assert {name for name in _required() if f"`{name}" not in table} == set()


def _required():
    """Returns the names of the packages that pyproject.toml asks for."""
    given = tomllib.loads((page.ROOT / "pyproject.toml").read_text())["project"]
    texts = sum(given["optional-dependencies"].values(), given["dependencies"])
    names = {re.match(r"[\w-]+", text).group() for text in texts} - {"ctr_trainer"}
    assert {"pyarrow", "nvidia-ml-py", "ruff", "tensorflow-cpu"} <= names
    return names


def test_the_four_steps_lead_from_a_csv_file_to_a_saved_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    draw = np.random.default_rng(0)
    users = draw.integers(0, 30, 1000)
    rows = (f"{draw.random() < (user % 5) / 5:d},{draw.lognormal():.3f},u{user}\n" for user in users)
    (tmp_path / "logs" / "day.csv").write_text("clicked,price,user\n" + "".join(rows))
    steps = README.partition("## Your own data")[2]
    (experiment,) = page.blocks(steps, "ini")
    (tmp_path / "mine.flags").write_text(experiment)
    (training,) = page.commands(steps, "horovodrun -np 2 ./run.sh")
    convert, rest = page.commands(steps)[:2], page.commands(steps)[2:]
    assert [command[0] for command in rest] == ["evaluate", "predict", "export"]
    for command in [*convert, ["train", *training, "--threads=1"], *rest]:
        assert cli.main(command) == 0, command
    assert '"examples": 100' in capsys.readouterr().out
    assert pq.read_table("scores.parquet").num_rows == 100
    assert (tmp_path / "serving" / "mine" / "1" / "saved_model.pb").exists()


PRINTED = {
    "ctr_trainer": "1000",
    "data": "{'dim4': (32, ",
    "estimator": "",
    "features": "small ['user', 'item', 'place', 'device'",
    "hooks": "",
    "layers": "(4, 8)",
    "metrics": "1.0",
    "models": "hidden_units=(",
    "sparse_optimizers": "adagrad",
}


def test_each_page_has_an_example():
    assert sorted(PRINTED) == sorted(path.stem for path in (page.DOCS / "api").glob("*.md"))


@pytest.mark.parametrize("name", PRINTED)
def test_the_example_prints_what_the_page_says(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if name in ("data", "features"):
        made = small.make(tmp_path, rows=64)
        (tmp_path / "made").mkdir()
        made.rename(tmp_path / "made" / "train")
        (tmp_path / "made").rename(tmp_path / "data")
    (example,) = page.blocks((page.DOCS / "api" / f"{name}.md").read_text(), "python")
    exec(example, {})
    assert PRINTED[name] in capsys.readouterr().out
