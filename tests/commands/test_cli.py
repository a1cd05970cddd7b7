import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from ctr_trainer import cli, flags
from tests import small


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return small.make(tmp_path_factory.mktemp("cli"), rows=300)


def _flagfile(tmp_path, data, *more):
    lines = [
        f"--train_data={data}",
        f"--eval_data={data}",
        f"--model_dir={tmp_path / 'model'}",
        "--hidden_units=8",
        "--batch_size=32",
        "--threads=1",
        "--log_steps=5",
        *more,
    ]
    path = tmp_path / "small.flags"
    path.write_text("\n".join(lines) + "\n")
    return f"--flagfile={path}"


def test_one_flagfile_trains_evaluates_predicts_and_exports(tmp_path, data, capsys, caplog):
    flagfile = _flagfile(tmp_path, data, "--epochs=2")
    with caplog.at_level("INFO"):
        assert cli.main(["train", flagfile]) == 0
    lines = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("step 5, auc = 0.") and "it/sec; " in line for line in lines)
    assert "current lr: 0.020000" in lines
    assert any(line.startswith("global_step/sec: ") for line in lines)
    status = "[RunStatus]: OpsEmbeddingLookup statistics => count: 20  P50: "
    assert any(line.startswith(status) for line in lines)
    capsys.readouterr()

    assert cli.main(["evaluate", flagfile]) == 0
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (metrics["global_step"], metrics["examples"]) == (20, 300)

    output = tmp_path / "predictions.parquet"
    assert cli.main(["predict", flagfile, f"--output={output}"]) == 0
    table = pq.read_table(output)
    assert table["row"].to_pylist() == [f"r{i}" for i in range(300)]
    logits, probabilities = (table[name].to_numpy() for name in ("logits", "probabilities"))
    np.testing.assert_allclose(probabilities, 1 / (1 + np.exp(-logits)), rtol=1e-5)
    assert probabilities.mean() == pytest.approx(metrics["prob_mean"], abs=1e-6)
    capsys.readouterr()

    assert cli.main(["export", flagfile, f"--export_dir={tmp_path / 'export'}"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"export_dir": str(tmp_path / "export")}


def test_a_model_is_evaluated_as_it_was_trained_whatever_the_flags_say_now(tmp_path, data, capsys):
    flagfile = _flagfile(tmp_path, data)
    assert cli.main(["train", flagfile, "--seed=7", "--initial_accumulator=0.5"]) == 0
    assert cli.main(["evaluate", flagfile]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["examples"] == 300
    assert cli.main(["evaluate", flagfile, "--model=lr"]) == 1
    assert "the checkpoint has dim4 with dims [4, 1]" in capsys.readouterr().err


def test_another_embedding_dim_than_the_specs(tmp_path, data, capsys):
    flagfile = _flagfile(tmp_path, data, "--embedding_dim=2", f"--export_dir={tmp_path / 'export'}")
    assert cli.main(["train", flagfile]) == 0
    assert (tmp_path / "export" / "saved_model.pb").exists()
    assert cli.main(["evaluate", flagfile]) == 0


def test_a_users_own_model_is_named_by_module(tmp_path, data, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from ctr_trainer.layers.linear import linear\n"
        "from ctr_trainer.models.head import binary_head\n"
        "def model_fn(features, labels, mode, params):\n"
        "    return binary_head(features, labels, mode, params, 2.0 * linear(features))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert cli.main(["train", _flagfile(tmp_path, data, "--model=mine:model_fn", "--max_steps=3")]) == 0


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["fly"], 2, "no command 'fly'; there are train, evaluate"),
        (["train", "--max_step=3"], 2, "Did you mean: max_steps"),
        (["train", "--batch_size=0"], 2, "batch_size"),
        (["train", "--scale_lr=cubic"], 2, "linear|sqrt|none"),
        (["evaluate", "--max_stepss=3"], 2, "max_stepss"),
        (["train", "stray"], 2, "takes flags only, not stray"),
        (["export", "--export_dir=x", "--output=y"], 2, "export does not use --output"),
        (["train", "--hidden_units=8,wide"], 2, "expected integers, comma separated"),
        (["train", "--train_data=x"], 1, "--model_dir is missing"),
        (["train", "--train_data=x", "--model_dir=y", "--epochs=0"], 1, "--epochs=0 never ends by itself"),
        (["train", "--train_data=x", "--model_dir=y", "--model=deep"], 1, "choose one of lr, fm, ffm, wide_deep, deepfm, "),
        (["train", "--train_data=x", "--model_dir=y", "--hidden_units=8,0"], 1, "each at least 1"),
        (["train", "--train_data=nowhere", "--model_dir=y"], 1, "data set nowhere: no such directory"),
        (["convert", "--format=criteo", "--output=z"], 1, "--input is missing"),
        (["convert", "--format=csv", "--input=a.csv", "--output=z"], 1, "--feature_spec is missing"),
        (["serve"], 1, "--data_dir is missing"),
    ],
)
def test_a_mistake_is_named_before_anything_starts(tmp_path, monkeypatch, capsys, arguments, status, message):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == status
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_shows_what_the_command_does_examples_and_its_flags_by_group(capsys, command):
    assert cli.main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"python -m ctr_trainer {command}" in text
    assert "Examples:" in text
    groups_of_their_own = {"convert": ["Convert"], "serve": ["Serve"], "service": ["Service"]}
    groups = groups_of_their_own.get(command, ["Model", "Data", "Training"])
    assert all(f"\n{group}:\n" in text for group in groups)
    assert ("--max_steps" in text) == (command not in groups_of_their_own)


def test_every_flag_has_a_help_text_and_no_two_groups_of_an_experiment_share_one():
    values = flags.define(flags.EXPERIMENT)
    assert all(values[name].help for name in values)
