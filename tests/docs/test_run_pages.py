"""The README and the pages of docs/: their steps, commands and examples are run as they stand."""

import json
import re
import sys
import time
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import pytest

from ctr_trainer import cli
from ctr_trainer.data.dataset import open_dataset
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.toml import tomllib
from ctr_trainer.models.registry import MODELS
from tests import small
from tests.data import foreign
from tests.docs import page

README = (page.ROOT / "README.md").read_text()
SHORT = {"train": ("--threads=1", "--epochs=2")}  # What keeps a command of a page short.


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


def test_the_four_steps_lead_from_csv_files_to_a_saved_model_and_two_workers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    draw = np.random.default_rng(0)
    for day in ("08", "09", "10"):
        users = draw.integers(0, 30, 400)
        at = [f"2026-01-{day} {hour % 24:02d}:00:00" for hour in range(400)]
        rows = (
            f"{draw.random() < (user % 5) / 5:d},{draw.lognormal():.3f},u{user},{time}\n"
            for user, time in zip(users, at, strict=True)
        )
        (tmp_path / "logs" / f"2026-01-{day}.csv").write_text("clicked,price,user,at\n" + "".join(rows))
    steps = README.partition("## Your own data")[2]
    (experiment,) = page.blocks(steps, "ini")
    (tmp_path / "mine.flags").write_text(experiment)
    (training,) = page.commands(steps, "horovodrun -np 2 run.sh")
    commands = page.commands(steps)
    assert [command[0] for command in commands] == ["convert", "train", "evaluate", "predict", "export", "convert"]
    for command in [*commands, ["train", *training]]:
        assert cli.main([*command, *SHORT.get(command[0], ())]) == 0, command
    assert '"examples": 400' in capsys.readouterr().out
    assert pq.read_table("scores.parquet").num_rows == 400
    assert open_dataset("data/mine/test").rows == 120
    assert (tmp_path / "serving" / "mine" / "1" / "saved_model.pb").exists()


def test_the_clicks_of_the_page_of_streams_depend_on_each_user_and_item(monkeypatch):
    (code,) = re.findall(
        r'python -c "(\nimport json, .*?)"\n', (page.DOCS / "streaming.md").read_text(), flags=re.DOTALL
    )
    records, clients = [], {"confluent_kafka": mock.MagicMock(), "confluent_kafka.admin": mock.MagicMock()}
    clients["confluent_kafka"].Producer.return_value.produce = lambda topic, text: records.append(json.loads(text))
    clients["confluent_kafka"].Producer.return_value.poll.side_effect = [0] * 30_000 + [KeyboardInterrupt]
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with mock.patch.dict(sys.modules, clients), pytest.raises(KeyboardInterrupt):
        exec(code, {})
    clicked = np.array([each["clicked"] for each in records])
    for name in ("user", "item"):
        ids = np.array([each[name] for each in records])
        counts, variance = np.bincount(ids), clicked.mean() * (1 - clicked.mean())
        by_chance = np.sqrt(variance * np.mean(1 / counts))
        assert (np.bincount(ids, clicked) / counts).std() > 1.5 * by_chance


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


PORTING = (page.DOCS / "porting.md").read_text()
ESTIMATOR, HOROVOD, FUXICTR = re.split(r"^## .*\n", PORTING, flags=re.MULTILINE)[1:]


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
    (tmp_path / "configs").symlink_to(page.ROOT / "configs")
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
        assert cli.main([*command, *SHORT.get(command[0], ())]) == 0, command
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["examples"] == 100


def test_each_model_that_the_page_about_porting_names_exists():
    table = FUXICTR.partition("| FuxiCTR's model |")[2]
    named = re.findall(r"\| `(\w+)` \|", table)
    assert len(named) == len(set(named)) >= 18 and set(named) <= set(MODELS)


def test_the_commands_about_inputs_run_one_after_the_other(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    rng = np.random.default_rng(0)
    rows = "".join(f"{i % 2},{rng.random():.3f},u{i % 9}\n" for i in range(100))
    (tmp_path / "logs" / "a.csv").write_text("clicked,price,user\n" + rows)
    foreign.write_spark(tmp_path / "warehouse" / "clicks", 100)
    foreign.write_spark(tmp_path / "warehouse" / "test" / "days", 40)
    (part,) = (tmp_path / "warehouse" / "test" / "days").rglob("*.parquet")
    part.rename(tmp_path / "warehouse" / "test" / "a.parquet")
    commands = page.commands((page.DOCS / "inputs.md").read_text())
    names = [command[0] for command in commands]
    assert names == ["convert", "convert", "train", "evaluate", "predict", "convert", "predict"]
    for number, command in enumerate(commands):
        if number == 1:
            (tmp_path / "my.toml").write_text(foreign.TOML.replace(', "day"', ""))
        assert cli.main([*command, *SHORT.get(command[0], ())]) == 0, command
    assert '"examples": 40' in capsys.readouterr().out
    assert open_dataset(tmp_path / "data" / "my" / "train").rows == 90


def test_a_history_of_ones_own_is_trained_from_raw_csv(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (page.DOCS / "sequences_and_tasks.md").read_text()
    section = text.partition("### A history of your own\n")[2].partition("\n### ")[0]
    (csv,), (shown,) = page.blocks(section, "csv"), page.blocks(section, "toml")
    (tmp_path / "views.csv").write_text(csv)
    commands = page.commands(section)
    assert [command[0] for command in commands] == ["convert", "convert", "train", "evaluate"]
    for command in commands:
        assert cli.main([*command, *SHORT.get(command[0], ())]) == 0, command
    spec = FeatureSpec.load(tmp_path / "views.toml")
    keys = re.findall(r"^(\w+) = (\S+)", shown.partition('name = "item_history"')[2], re.MULTILINE)
    assert [str(getattr(spec.sequences[0], key)).lower() for key, _ in keys] == [value.strip('"') for _, value in keys]
    out = capsys.readouterr().out
    assert re.search(r"item_history +1\.\d\d +3 ", out) and '"examples": 3' in out


def test_the_example_of_features_converts_and_reads_as_the_page_says(tmp_path, monkeypatch, capsys):
    text = (page.DOCS / "features.md").read_text()
    for language, name in (("csv", "shop.csv"), ("toml", "shop.toml")):
        (block,) = page.blocks(text, language)
        (tmp_path / name).write_text(block)
    (command,) = page.commands(text)
    monkeypatch.chdir(tmp_path)
    assert cli.main(command) == 0
    assert "price_level: 2 buckets, cut at 14" in capsys.readouterr().out
    spec = FeatureSpec.load(tmp_path / "shop.toml")
    assert [(label.name, label.weight) for label in spec.labels] == [("clicked", 1.0), ("bought", 0.5)]
    (batch,) = BatchReader(tmp_path / "shop", 4, shuffle=False, epochs=1)
    assert batch.labels.tolist() == [[1, 1], [1, 0], [0, 0], [0, 0]]
    assert batch.bags["topics"].weights.tolist() == [0.5, 2, 1, 1.5, 0.25]
    item = batch.keys["dim8"][:, 1]
    assert batch.bags["history"].values.tolist() == [item[2], item[1], item[0], item[0], item[1], item[2]]
