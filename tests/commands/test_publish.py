"""`publish`: a checkpoint whole, and the spool of a training."""

import contextlib
import json

import numpy as np
import pytest

from ctr_trainer import cli
from ctr_trainer.checkpoint.checkpoint import latest_checkpoint
from ctr_trainer.embedding.snapshot import snapshot
from ctr_trainer.live.publication.places import open_reader
from tests import small


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Holds a `model`, whose item `3` and others have rows."""
    directory = tmp_path_factory.mktemp("publish")
    data = small.make(directory, rows=100)
    flags = [f"--train_data={data}", f"--model_dir={directory / 'model'}", "--hidden_units=4", "--batch_size=32"]
    assert cli.main(["train", *flags, "--threads=1"]) == 0
    return directory


def publish(directory, to, *more):
    return cli.main(["publish", f"--model_dir={directory / 'model'}", f"--to={to}", *more])


def test_a_checkpoint_is_published_whole_each_time_as_a_new_generation(directory, tmp_path, capsys):
    checkpoint = latest_checkpoint(str(directory / "model"))
    for generation, dtype in ((1, "float32"), (2, "float16")):
        assert publish(directory, tmp_path / "to", f"--publish_dtype={dtype}") == 0
        said = json.loads(capsys.readouterr().out.splitlines()[-1])
        reader = open_reader(tmp_path / "to")
        assert (reader.record.generation, reader.record.global_step) == (generation, checkpoint.step)
        assert (said["rows"], said["checkpoint"]) == (reader.record.rows, checkpoint.path)
        configs, rows = checkpoint.table_configs(), 0
        for config, keys, trained in snapshot.iterate(checkpoint.path, checkpoint.tables):
            assert reader.record.configs()[config.name] == configs[config.name]
            weights = trained[:, : config.weights]
            error = 0 if dtype == "float32" else 2**-11 * np.abs(weights) + 2**-25
            assert (np.abs(reader.read(config.name, keys)[0] - weights) <= error).all()
            rows += len(keys)
        assert rows == said["rows"] > 100
        from ctr_trainer.export.saved_model import load_spec

        with reader.tower(reader.record) as tower:
            assert load_spec(tower).name == "small"
        reader.close()


def test_rows_of_8_bits_are_published_as_they_are(tmp_path):
    data = small.make(tmp_path, rows=100)
    flags = [f"--train_data={data}", f"--model_dir={tmp_path / 'model'}", "--hidden_units=4", "--batch_size=32"]
    assert cli.main(["train", *flags, "--threads=1", "--row_dtype=int8"]) == 0
    assert publish(tmp_path, tmp_path / "to") == 0
    checkpoint, rows = latest_checkpoint(str(tmp_path / "model")), 0
    with contextlib.closing(open_reader(tmp_path / "to")) as reader:
        assert reader.record.dtype == "int8"
        for config, keys, trained in snapshot.iterate(checkpoint.path, checkpoint.tables):
            weights = config.form.read(trained)
            np.testing.assert_allclose(reader.read(config.name, keys)[0], weights, rtol=1e-6, atol=0)
            rows += np.count_nonzero(weights.any(axis=1))
        assert rows > 100


def test_a_published_model_is_replaced_by_one_with_other_inputs_only_if_asked(directory, tmp_path, capsys):
    assert publish(directory, tmp_path / "to") == 0
    (file,) = tmp_path.glob("to/generation-*/base-*.json")
    record = json.loads(file.read_text())
    assert (record["inputs"]["words"], record["inputs"]["topics"]) == ("texts", "weighted texts with ':'")
    del record["inputs"]["words"]
    file.write_text(json.dumps(record | {"inputs": record["inputs"] | {"phone": "text"}}))
    assert publish(directory, tmp_path / "to") == 1
    assert "its clients have to add 'words' (texts); leave out 'phone'. " in capsys.readouterr().err
    with contextlib.closing(open_reader(tmp_path / "to")) as reader:
        assert reader.record.generation == 1
    assert publish(directory, tmp_path / "to", "--change_inputs") == 0


@pytest.mark.parametrize(
    ("flags", "status", "said"),
    [
        ([], 1, "--to is missing"),
        (["--to=x"], 1, "--model_dir is missing"),
        (["--to=x", "--model_dir=nowhere"], 1, "no such directory"),
        (["--to=x", "--input=./x"], 1, "is the spool of the training itself"),
        (["--to=x", "--publish_dtype=int4"], 2, "choose one of auto, float32, float16, int8"),
    ],
)
def test_what_is_missing_or_wrong_is_said(flags, status, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["publish", *flags]) == status
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
