"""The snippets of the page about porting, run as they stand."""

import json
import re

import numpy as np
import pytest

from ctr_trainer import cli
from ctr_trainer.models.registry import MODELS
from tests import small
from tests.docs import page

PAGE = (page.DOCS / "porting.md").read_text()
ESTIMATOR, HOROVOD, FUXICTR = re.split(r"^## .*\n", PAGE, flags=re.MULTILINE)[1:]


def test_the_ported_estimator_learns(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec("\n".join(page.blocks(ESTIMATOR, "python")), {})
    assert float(capsys.readouterr().out.split()[-1]) > 0.9


def test_the_ported_horovod_model_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.toml").write_text(small.SPEC)
    (program,) = page.blocks(HOROVOD, "python")
    (tmp_path / "mine.py").write_text(program)
    monkeypatch.syspath_prepend(str(tmp_path))
    small.make(tmp_path, rows=100).rename(tmp_path / "data_of_small")
    (tmp_path / "data").mkdir()
    (tmp_path / "data_of_small").rename(tmp_path / "data" / "train")
    (command,) = page.commands(HOROVOD)
    assert cli.main([*command, "--threads=1", "--recipe=none"]) == 0
    assert json.loads((tmp_path / "model" / "train_summary.json").read_text())["examples"] == 100


@pytest.fixture
def advertisements(tmp_path, monkeypatch):
    """A directory with what the page's FuxiCTR experiment reads."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    (tmp_path / "ads").mkdir()
    for part, rows in (("train", 400), ("valid", 100)):
        users = draw.integers(0, 20, rows)
        lines = (
            f"{draw.random() < (u % 5) / 5:d},u{u},a{u % 7},{draw.normal():.3f},t{u % 3}^t{u % 4}\n" for u in users
        )
        (tmp_path / "ads" / f"{part}.csv").write_text("clicked,user,ad,price,tags\n" + "".join(lines))
    return tmp_path


def test_the_ported_fuxictr_experiment_trains_and_is_evaluated(advertisements, capsys):
    (spec,), (experiment,) = page.blocks(FUXICTR, "toml"), page.blocks(FUXICTR, "ini")
    (advertisements / "ads.toml").write_text(spec)
    (advertisements / "ads.flags").write_text(experiment)
    commands = page.commands(FUXICTR)
    assert [command[0] for command in commands] == ["convert", "convert", "train", "evaluate"]
    for command in commands:
        assert cli.main(command) == 0, command
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["examples"] == 100


def test_each_model_it_names_exists():
    table = FUXICTR.partition("| FuxiCTR's model |")[2]
    named = re.findall(r"\| `(\w+)` \|", table)
    assert len(named) == len(set(named)) >= 18 and set(named) <= set(MODELS)
