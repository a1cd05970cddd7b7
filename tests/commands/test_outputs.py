"""What `predict` and `evaluate` write, and what they never replace."""

import json
import os
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_trainer import cli
from tests import small


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Holds `data`, of two labels, a `model` of it and a flagfile."""
    directory = tmp_path_factory.mktemp("outputs")
    data = small.make(directory, rows=100, labels=2)
    lines = [f"--{name}_data={data}" for name in ("train", "eval")]
    lines += [f"--model_dir={directory / 'model'}", "--model=shared_bottom"]
    (directory / "flags").write_text("\n".join([*lines, "--hidden_units=4", "--batch_size=32", "--threads=1"]))
    assert cli.main(["train", f"--flagfile={directory / 'flags'}", "--recipe=none"]) == 0
    return directory


def run(command, directory, *more):
    return cli.main([command, f"--flagfile={directory / 'flags'}", *more])


def test_labels_stand_beside_the_predictions_and_only_ours_are_replaced(directory, tmp_path, capsys):
    output = tmp_path / "p.parquet"
    pq.write_table(pa.table({"mine": [1]}), output)
    assert run("predict", directory, f"--output={output}") == 1
    assert "p.parquet: exists already and was not written by `predict`" in capsys.readouterr().err
    assert pq.read_table(output).column_names == ["mine"]
    output.unlink()
    assert run("predict", directory, f"--output={tmp_path / 'p.csv'}") == 1
    assert "p.csv: predict writes Parquet; name a FILE.parquet" in capsys.readouterr().err
    for _ in range(2):
        assert run("predict", directory, f"--output={output}") == 0
    table = pq.read_table(output)
    expected = pq.read_table(directory / "data")
    for name in ("clicked", "bought"):
        assert table[f"label/{name}"].to_pylist() == expected[f"label:{name}"].to_pylist()
        assert f"probabilities/{name}" in table.column_names
    assert list(tmp_path.iterdir()) == [output]
    for bad, why in ((directory / "data" / "p.parquet", "is inside the input"), (tmp_path, "predict writes Parquet")):
        assert run("predict", directory, f"--output={bad}") == 1
        assert why in capsys.readouterr().err


def test_an_export_that_cannot_be_written_is_refused_before_training(directory, tmp_path, capsys):
    (tmp_path / "saved_model.pb").touch()
    assert run("train", directory, f"--model_dir={tmp_path / 'model'}", f"--export_dir={tmp_path}") == 1
    assert "holds files that `export` did not write (saved_model.pb)" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("command", "flag"),
    [("train", "--model_dir"), ("predict", "--output"), ("export", "--export_dir")],
)
def test_what_cannot_be_written_is_told_as_an_error_of_the_user(directory, tmp_path, capsys, command, flag):
    (tmp_path / "file").touch()
    assert run(command, directory, f"{flag}={tmp_path}/file/m.parquet") == 1
    error = capsys.readouterr().err
    assert re.search(r"file/\S+: cannot be written: (Not a directory|File exists)", error) and "Traceback" not in error


def test_a_full_disk_ends_a_prediction_without_a_file(directory, tmp_path, capsys, full_disk):
    assert run("predict", directory, f"--output={tmp_path / 'p.parquet'}") == 1
    assert "p.parquet: cannot be written: No space left on device" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_evaluate_replaces_only_what_it_wrote(directory, tmp_path, capsys):
    output = tmp_path / "metrics.json"
    for text in ('{"mine": 1}', "[]", "text"):
        output.write_text(text)
        assert run("evaluate", directory, f"--output={output}") == 1
        assert "metrics.json: exists already and was not written by `evaluate`" in capsys.readouterr().err
        assert output.read_text() == text
    output.unlink()
    for _ in range(2):
        assert run("evaluate", directory, f"--output={output}") == 0
    assert json.loads(output.read_text())["examples"] == 100 and list(tmp_path.iterdir()) == [output]
