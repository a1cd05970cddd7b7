"""Values of a person are shown and erased: no file that is left has their keys, rows or texts."""

import contextlib
import io
import json
import pathlib
import re
import shutil
import sys

import numpy as np
import pytest

from ctr_trainer import cli
from ctr_trainer.checkpoint import checkpoint as checkpoints
from ctr_trainer.checkpoint.checkpoint import BEST
from ctr_trainer.checkpoint.model_directory import load_features, one_job
from ctr_trainer.checkpoint.values import values_of
from ctr_trainer.embedding.snapshot import snapshot
from ctr_trainer.embedding.table import rocks
from ctr_trainer.features import hashing
from ctr_trainer.live.publication.places import open_reader
from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.horovod import OneWorker
from ctr_trainer.system.files.paths import path_of
from tests import redis_cluster, small

MORE = """
[[cross]]
columns = ["user", "place"]

[[limits]]
table = "dim4"
max_rows = 100000
min_frequency = 2
"""
ERASED = ("user", "person-7", "place", "south")
FLAGS = ("--recipe=none", "--batch_size=32", "--threads=1", "--hidden_units=4", "--epochs=3")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A directory with `rows.csv`, of persons, and `spec.toml`."""
    directory = tmp_path_factory.mktemp("persons")
    small.write_csv(directory / "rows.csv", 400)
    text = re.sub(r",u(\d+),", r",person-\1,", (directory / "rows.csv").read_text())
    (directory / "rows.csv").write_text(text)
    (directory / "spec.toml").write_text(small.SPEC + MORE)
    return directory


def _train(data, model, *more):
    flags = [f"--train_data={data / 'rows.csv'}", f"--feature_spec={data / 'spec.toml'}", f"--model_dir={model}"]
    return cli.main(["train", *flags, *FLAGS, f"--eval_data={data / 'rows.csv'}", *more])


@pytest.fixture(scope="module")
def model(data, tmp_path_factory):
    """The directory of a model of three steps."""
    directory = tmp_path_factory.mktemp("model")
    assert _train(data, directory, "--max_steps=3", "--eval_data=") == 0
    return directory


def _rows(checkpoint):
    found = {}
    for _, keys, rows in snapshot.iterate(checkpoint.path, checkpoint.tables):
        found |= {int(key): row.tobytes() for key, row in zip(keys, rows, strict=True)}
    return found


class _Horovod(OneWorker):
    """Horovod in one process: it knows no rank before it is initialized."""

    def init(self, process_sets):
        self._ranks = [0]

    def rank(self):
        return self._ranks[0]


@pytest.mark.parametrize("command", ("keys", "erase"))
def test_the_commands_need_no_program_that_started_horovod(model, tmp_path, monkeypatch, command):
    monkeypatch.setattr(distributed, "_hvd", _Horovod(""))
    shutil.copytree(model, tmp_path / "model")
    assert cli.main([command, "user", "person-7", f"--model_dir={tmp_path / 'model'}"]) == 0


def _files_with(directory, patterns):
    """Returns the files of a directory that have one of some bytes."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {path for path in files for sought in patterns if sought in path.read_bytes()}


def test_values_are_erased_from_every_file_and_nothing_else_is(data, tmp_path, capsys, monkeypatch):
    model, to = tmp_path / "model", tmp_path / "publication"
    steps = ["--save_checkpoints_steps=6", "--eval_steps=6", "--best_metric=auc"]
    assert _train(data, model, *steps) == 0
    assert cli.main(["publish", f"--model_dir={model}", f"--to={to}", "--checkpoint=latest"]) == 0
    flags = json.loads((model / "flags.json").read_text())
    flags["flags"]["publish"] = str(to)  # As if the training had published its last state.
    (model / "flags.json").write_text(json.dumps(flags))
    before = checkpoints.list_checkpoints(str(model))
    kinds = {entry["kind"] for checkpoint in before for entry in checkpoint.tables}
    assert kinds == {"full", "delta", "use", "counts"}

    capsys.readouterr()
    assert cli.main(["keys", *ERASED, f"--model_dir={model}", "--checkpoint=latest"]) == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    rows = _rows(before[-1])
    assert [each["feature"] for each in said] == ["user", "place", "user_x_place"]
    for each in said:
        (row,) = each["rows"]
        assert np.array(row["weights"] + row["state"], np.float32).tobytes() == rows[each["key"]]
        assert len(row["weights"]) == 4 + 1 and 0 < row["last_step"] <= before[-1].step and row["trained"] > 0

    # The crosses of the person with all places, and of the place with all persons that are in the data.
    features = load_features(str(model))
    pairs = {tuple(line.split(",")[4:7:2]) for line in (data / "rows.csv").read_text().splitlines()[1:]}
    (cross,) = features[0].cross
    keys = {each["key"] for each in said}
    for user, place in pairs:
        if user == "person-7" or place == "south":
            parts = values_of(features, [("user", user), ("place", place)])[:2]
            keys.add(int(hashing.cross_keys(cross, [np.array([part.key]) for part in parts])[0]))
    assert len(keys & rows.keys()) > 20  # Single examples have no row of their cross.
    patterns = [b"person-7", b"south", *(key.to_bytes(8, "little", signed=True) for key in keys)]
    patterns += [rows[key] for key in keys & rows.keys()]
    has = {path.relative_to(tmp_path).parts[:2] for path in _files_with(tmp_path, patterns)}
    assert {("model", name) for name in ("checkpoints", "best", "data_cache", "features.json")} < has
    assert "publication" in {each[0] for each in has}

    erase = ["erase", *ERASED, f"--model_dir={model}"]
    with one_job(str(model)):
        assert cli.main(erase) == 1
    commit = checkpoints.commit
    monkeypatch.setattr(checkpoints, "commit", lambda checkpoint: 1 / 0)
    assert cli.main(erase) == 70
    assert [_rows(each) for each in checkpoints.list_checkpoints(str(model))] == [_rows(each) for each in before]
    monkeypatch.setattr(checkpoints, "commit", commit)
    capsys.readouterr()
    assert cli.main(erase) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert _files_with(tmp_path, patterns) == set()
    assert said["rows"] > 2 * len(keys) and any("user_x_place" in each for each in said["not_reached"])

    after = checkpoints.list_checkpoints(str(model))
    assert [each.step for each in after] == [each.step for each in before]
    assert _rows(after[-1]) == {key: row for key, row in rows.items() if key not in keys}
    for each in [*after, *checkpoints.list_checkpoints(str(model), checkpoints.BEST)]:
        each.verify()
    reader = open_reader(to)
    kept = np.array(sorted(rows.keys() - keys), np.int64)
    assert reader.read("dim4", kept)[1].all() and not reader.read("dim4", np.array(sorted(keys)))[1].any()
    reader.close()
    assert cli.main(["keys", *ERASED, f"--model_dir={model}"]) == 0
    assert all(not json.loads(line)["rows"] for line in capsys.readouterr().out.splitlines()[-3:])
    assert _train(data, model, *steps, "--epochs=4") == 0  # The raw data still has them, so they are learned again.
    assert keys & _rows(checkpoints.latest_checkpoint(str(model))).keys()


def test_rows_on_disk_are_erased_from_every_file_and_nothing_else_is(data, tmp_path, capsys, monkeypatch):
    pytest.importorskip("rocksdict", reason="rows on disk need the extra `disk`")
    model, spec = tmp_path / "model", tmp_path / "spec.toml"
    spec.write_text((small.SPEC + MORE).replace("max_rows = 100000\nmin_frequency = 2", "ttl_steps = 30"))
    steps = ["--save_checkpoints_steps=6", "--table_memory=3KB", f"--feature_spec={spec}"]
    assert _train(data, model, *steps, "--best_metric=auc", "--eval_steps=6") == 0

    def rows():
        found = {BEST: checkpoints.list_checkpoints(str(model), BEST), "": checkpoints.list_checkpoints(str(model))}
        return {(place, each.step): _rows(each) for place, several in found.items() for each in several}

    before, last = rows(), checkpoints.latest_checkpoint(str(model))
    had = b"".join(path.read_bytes() for path in model.rglob("*.sst"))
    disk = {key for _, _, _, files in snapshot.cold_tables(last.path, last.tables) for key in _keys(files)}
    erase = ["erase", "user", "person-7", "place", "south", f"--model_dir={model}"]
    others = [pathlib.Path(last.path, name) for name in ("notes.cold.txt", "mine.arrow")]  # Files of the user.
    for file in others:
        file.write_text("a note")
    with monkeypatch.context() as killed:
        killed.setattr(checkpoints, "commit", lambda checkpoint: 1 / 0)
        assert cli.main(erase) == 70
    assert rows() == before
    assert cli.main(erase) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    after = rows()
    gone = {key for each in before.values() for key in each} - {key for each in after.values() for key in each}
    keys = {*said["keys"].values()}
    assert keys <= gone and len(gone & disk) > 10
    assert after == {place: {k: row for k, row in each.items() if k not in gone} for place, each in before.items()}
    # A row's bytes are found in each file; of a key, RocksDB may have left out the first bytes.
    patterns = [row[key] for row in before.values() for key in gone & row.keys()]
    assert sum(row in had for row in patterns) > 10 and _files_with(tmp_path, patterns) == set()
    for each in checkpoints.list_checkpoints(str(model)):
        each.verify()
        for _, _, _, files in snapshot.cold_tables(each.path, each.tables):
            assert not _keys(files) & gone
    assert not [each for each in said["not_reached"] if each.startswith(str(model))]
    files = {path.stat().st_ino: path for path in model.rglob("*.sst")}
    assert cli.main(erase) == 0  # Nothing is left to erase, so no file is written again.
    assert [file.read_text() for file in others] == ["a note"] * 2
    assert {path.stat().st_ino: path for path in model.rglob("*.sst")} == files
    assert _train(data, model, *steps, "--epochs=4") == 0


def _keys(files):
    """Returns the keys in the database of some files, also of rows that are out of date there."""
    return {key for keys, _ in rocks.read_blocks(files, 1) for key in keys.tolist()}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "there are none"),
        (["user"], "user has no value"),
        (["usr", "u1"], "no such sparse feature; it has user, .* user?"),
        (["age_group", "old"], "age_group old: expected a finite number"),
        (["age_group", "30"], "age_group: its rows are of ranges or parts"),
    ],
)
def test_what_cannot_be_erased_is_said(model, values, message, capsys):
    assert cli.main(["erase", *values, f"--model_dir={model}"]) == 1
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.integration
def test_a_cluster_has_one_generation_without_the_erased_row(model, tmp_path, capsys):
    model = shutil.copytree(model, tmp_path / "model")  # Other tests read it, too.
    with redis_cluster.running(tmp_path) as cluster:
        publish = [f"--model_dir={model}", f"--to={cluster.url}"]
        assert cli.main(["publish", *publish]) == 0
        capsys.readouterr()
        assert cli.main(["keys", "place", "south", f"--model_dir={model}"]) == 0
        key = np.array([json.loads(capsys.readouterr().out.splitlines()[-1])["key"]])
        generations = []
        for is_there in (True, False):
            with contextlib.closing(open_reader(cluster.url)) as reader:
                assert list(reader.read("dim4", key)[1]) == [is_there]
                generations.append(reader.record.generation)
            if is_there:
                assert cli.main(["erase", "place", "south", *publish]) == 0
        names = b" ".join(name for port in cluster.primaries() for name in cluster.ask(port, "KEYS", "*"))
        old, new = (str(generation).encode() in names for generation in generations)
        assert new and not old


def test_a_model_in_a_store_is_erased_there(model, store, capsys, monkeypatch):
    url = "s3://tests/model"
    for name in path_of(model).files():
        (path_of(url) / name).copy_from(path_of(model) / name)
    capsys.readouterr()
    for place, rows in ((model, 1), (url, 1), (url, 0)):
        assert cli.main(["keys", "place", "south", f"--model_dir={place}"]) == 0
        found = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert len(found["rows"]) == rows
        if place == url and rows:
            monkeypatch.setattr(sys, "stdin", io.StringIO("place 'south'"))
            assert cli.main(["erase", "-", f"--model_dir={url}"]) == 0
            capsys.readouterr()
    key = found["key"].to_bytes(8, "little", signed=True)
    assert not [name for name in path_of(url).files() if key in (path_of(url) / name).read_bytes()]
