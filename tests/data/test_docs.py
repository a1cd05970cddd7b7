"""The command lines of docs/inputs.md, and an example of docs/sequences_and_tasks.md, are run as they stand."""

import pathlib
import re
import shlex

import numpy as np

from ctr_trainer import cli
from ctr_trainer.data.dataset import open_dataset
from ctr_trainer.features.spec import FeatureSpec
from tests.data import foreign

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "inputs.md"
HISTORIES = PAGE.with_name("sequences_and_tasks.md")


def test_the_pages_commands_run_one_after_the_other(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    rng = np.random.default_rng(0)
    rows = "".join(f"{i % 2},{rng.random():.3f},u{i % 9}\n" for i in range(100))
    (tmp_path / "logs" / "a.csv").write_text("clicked,price,user\n" + rows)
    foreign.write_spark(tmp_path / "warehouse" / "clicks", 100)
    foreign.write_spark(tmp_path / "warehouse" / "test" / "days", 40)
    (part,) = (tmp_path / "warehouse" / "test" / "days").rglob("*.parquet")
    part.rename(tmp_path / "warehouse" / "test" / "a.parquet")
    commands = re.findall(r"^    python -m ctr_trainer ((?!bench ).*?)(?:  +#.*)?$", PAGE.read_text(), re.MULTILINE)
    names = [shlex.split(command)[0] for command in commands]
    assert names == ["convert", "convert", "train", "evaluate", "predict", "convert", "predict"]
    for number, command in enumerate(commands):
        if number == 1:
            (tmp_path / "my.toml").write_text(foreign.TOML.replace(', "day"', ""))
        assert cli.main(shlex.split(command)) == 0, command
    assert '"examples": 40' in capsys.readouterr().out
    assert open_dataset(tmp_path / "data" / "my" / "train").rows == 90


def test_a_history_of_ones_own_is_trained_from_raw_csv(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    section = HISTORIES.read_text().partition("### A history of your own\n")[2].partition("\n### ")[0]
    (csv,) = re.findall(r"^```csv\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    (shown,) = re.findall(r"^```toml\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    (tmp_path / "views.csv").write_text(csv)
    commands = re.findall(r"^    python -m ctr_trainer (.*)$", section, re.MULTILINE)
    assert [shlex.split(command)[0] for command in commands] == ["convert", "convert", "train", "evaluate"]
    for command in commands:
        assert cli.main(shlex.split(command)) == 0, command
    spec = FeatureSpec.load(tmp_path / "views.toml")
    keys = re.findall(r"^(\w+) = (\S+)", shown.partition('name = "item_history"')[2], re.MULTILINE)
    assert [str(getattr(spec.sequences[0], key)).lower() for key, _ in keys] == [value.strip('"') for _, value in keys]
    out = capsys.readouterr().out
    assert re.search(r"item_history +1\.\d\d +3 ", out) and '"examples": 3' in out
