import importlib
import json
import re
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_trainer import __version__, cli
from ctr_trainer.commands.experiment import flags
from tests.parallel import launch


def _flagfile(tmp_path, data, *more):
    lines = [
        f"--train_data={data}",
        f"--eval_data={data}",
        f"--model_dir={tmp_path / 'model'}",
        "--hidden_units=8",
        "--batch_size=32",
        "--threads=1",
        "--log_steps=5",
        "--recipe=none",
        *more,
    ]
    path = tmp_path / "small.flags"
    path.write_text("\n".join(lines) + "\n")
    return f"--flagfile={path}"


def test_the_version_is_printed(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"


# What a program that reads the log of a TensorFlow 1 training looks for, from the message on.
_STEP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}: step (\d+), "
_PACE = r" \((\d+\.\d) it/sec; (\d+\.\d) examples/sec\)"
_MICROSECONDS = "  ".join(rf"{name}: (\d+\.\d{{6}})" for name in ("P50", "P95", "P99", "Max"))
_STATUS = rf" statistics => count: (\d+)  {_MICROSECONDS}"
KINDS = {
    "auc": rf"{_STEP}auc = (\d\.\d{{4}}){_PACE}",
    **{name: rf"{_STEP}{name}:0 = (\d+\.\d+){_PACE}" for name in ("xentropy_mean", "prob_mean", "real_mean")},
    "lr": r"current lr: (\d+\.\d{6})",
    "global_step/sec": r"global_step/sec: ([\d.e+]+)",
    **{name: rf"\[RunStatus\]: {name}{_STATUS}" for name in ("OpsReadSample", "OpsEmbeddingLookup", "OpsPushGrad")},
    "Ps": rf"\[RunStatus\]: (PsEmbeddingLookup|PsPushGrad){_STATUS}",
}
PREDECESSOR = (
    "2024-10-02 00:21:29.533615: step 2800, auc = 0.6706 (63.9 it/sec; 65430.9 examples/sec)",
    "2024-10-02 00:21:29.533615: step 2800, xentropy_mean:0 = 0.41235680 (63.9 it/sec; 65430.9 examples/sec)",
    "2024-10-02 00:21:29.533615: step 2800, prob_mean:0 = 0.15 (63.9 it/sec; 65430.9 examples/sec)",
    "2024-10-02 00:21:29.533615: step 2800, real_mean:0 = 0.16 (63.9 it/sec; 65430.9 examples/sec)",
    "current lr: 0.050000",
    "global_step/sec: 63.9066",
    *(
        f"[RunStatus]: {name} statistics => count: 1553  P50: 41644.387001  P95: 50000.000000  P99: 60000.000000  "
        "Max: 70000.000000"
        for name in ("OpsReadSample", "OpsEmbeddingLookup", "OpsPushGrad", "PsEmbeddingLookup", "PsPushGrad")
    ),
)


def _kinds(messages):
    """Returns a dict of kind -> its messages' groups, and the messages that look like one of them and are none."""
    found = {name: [] for name in KINDS}
    others = []
    for message in messages:
        for name, kind in KINDS.items():
            if match := re.fullmatch(kind, message):
                found[name].append(match.groups())
                break
        else:
            others.append(message)
    return found, others


def test_ten_kinds_of_lines_are_read_in_the_predecessor_s_log_and_in_ours(tmp_path, data):
    """Of processes of their own, since the form of the lines is their handler's."""
    theirs, others = _kinds(PREDECESSOR)
    assert all(theirs.values()) and not others
    more = ["--log_names=graph", "--embedding_service=auto", "--log_format=json", "--log_steps=2"]
    more += ["--log_ranks=0"]
    done = launch.run(2, "-m", "ctr_trainer", "train", _flagfile(tmp_path, data, *more))
    lines = [json.loads(line) for line in re.findall(r"^\[\d\]<stderr>:(\{.*\})$", done.stderr, re.MULTILINE)]
    assert not [line for line in lines if line["rank"] and line["level"] == "INFO"]
    ours, others = _kinds(line["message"] for line in lines if line["rank"] == 0)
    assert [name for name, found in ours.items() if not found] == []
    assert [step for step, *_ in ours["auc"]] == ["2", "4", "5"] and ours["lr"] == [("0.040000",)] * 3
    assert {name for name, *_ in ours["Ps"]} == {"PsEmbeddingLookup", "PsPushGrad"}
    status = re.compile(rf"\[RunStatus\]: (OpsLocalLookup|OpsParameterSync|Step\w+){_STATUS}")
    assert [line for line in others if "RunStatus" in line and not status.fullmatch(line)] == []
    assert [line for line in others if re.search(r"step \d+, \S+ = ", line)] == []


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
    for name in ("OpsReadSample", "OpsPushGrad", "StepLookup", "StepRowUpdate"):
        assert any(line.startswith(f"[RunStatus]: {name} statistics => count: 20 ") for line in lines)
    assert any(line.startswith("step 5 of 20 (25%), epoch 0.5 of 2, ") for line in lines)
    assert not any(line.startswith("resuming from") for line in lines)
    # With --eval_data alone there is one evaluation, after the last step.
    assert [line.split(" = ")[0] for line in lines if line.startswith("evaluation")] == ["evaluation at step 20: auc"]
    assert json.loads((tmp_path / "model" / "train_summary.json").read_text())["evaluation"]["examples"] == 300
    assert [line.split(":")[0] for line in lines].count("auc in the lines of steps is progressive") == 1
    assert lines.index("starting from step 0: 300 rows an epoch, 2 epochs, 20 steps, 1 worker") < min(
        number for number, line in enumerate(lines) if line.startswith("step 5, ")
    )
    epochs = [line for line in lines if re.match(r"(the rest of )?epoch \d", line)]
    took = r"took \d+\.\d s: 10 steps, 300 rows, [\d,]+\.\d rows/sec"
    assert len(epochs) == 2
    assert all(re.fullmatch(f"epoch {number} of 2 {took}", line) for number, line in enumerate(epochs, 1))
    caplog.clear()
    with caplog.at_level("INFO"):
        assert cli.main(["train", flagfile, "--epochs=3", "--eval_steps=10", "--best_metric=accuracy"]) == 0
        assert cli.main(["train", flagfile, "--epochs=4"]) == 0
    first, second = (r.getMessage() for r in caplog.records if r.getMessage().startswith("resuming from"))
    model = tmp_path / "model"
    at = f"resuming from {model}/checkpoints/step-0000000020: step 20, epoch 2.0, 1 worker now, 1 then"
    assert first == at
    said = [record.getMessage() for record in caplog.records]
    assert not any(line.startswith("starting from step 0") for line in said)
    assert sum(line.startswith("epoch 3 of 3 took ") for line in said) == 1
    (line,) = [line for line in said if line.startswith("evaluation at step 30: ")]
    kept = re.escape(f"the best so far, kept in {model / 'best'}")
    assert re.match(rf"evaluation at step 30: accuracy = 0\.\d+ \({kept}\), loss = .*, logloss = 0\.\d{{8}}, ", line)
    best = json.loads((model / "evaluations.json").read_text())["best"]
    assert f"step 30, epoch 3.0, best accuracy so far {best['value']:.4f} at step 30, 1 worker now" in second
    capsys.readouterr()

    assert cli.main(["evaluate", flagfile]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["global_step"] == 30  # The best is kept.
    assert cli.main(["evaluate", flagfile, "--checkpoint=latest"]) == 0
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (metrics["global_step"], metrics["examples"]) == (40, 300)

    output = tmp_path / "predictions.parquet"
    assert cli.main(["predict", flagfile, f"--output={output}", "--checkpoint=latest"]) == 0
    table = pq.read_table(output)
    assert table["row"].to_pylist() == [f"r{i}" for i in range(300)]
    logits, probabilities = (table[name].to_numpy() for name in ("logits", "probabilities"))
    np.testing.assert_allclose(probabilities, 1 / (1 + np.exp(-logits)), rtol=1e-5)
    assert probabilities.mean() == pytest.approx(metrics["prob_mean"], abs=1e-6)
    capsys.readouterr()

    assert cli.main(["export", flagfile, f"--export_dir={tmp_path / 'export'}"]) == 0
    exported = {"export_dir": str(tmp_path / "export"), "global_step": 30}
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == exported


def _damage_all_recent_checkpoints(model):
    """Flips a bit in the middle of each of their files, in place."""
    files = [path for path in (model / "checkpoints").glob("*/*") if path.name != "manifest.json"]
    assert files
    for path in files:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        with open(path, "r+b") as file:
            file.write(data)


def test_evaluations_on_the_way_the_best_model_and_a_report(tmp_path, data, capsys):
    flagfile = _flagfile(tmp_path, data, "--epochs=3", f"--export_dir={tmp_path / 'export'}")
    model, output = tmp_path / "model", tmp_path / "best.json"
    in_loop = ["--eval_epochs=1", "--best_metric=auc", "--group_by=user", "--early_stopping_patience=9"]
    assert cli.main(["train", flagfile, *in_loop]) == 0
    history = json.loads((model / "evaluations.json").read_text())
    assert [each["step"] for each in history["evaluations"]] == [10, 20, 30]
    assert json.loads((model / "flags.json").read_text())["flags"]["eval_epochs"] == 1
    assert json.loads((model / "train_summary.json").read_text())["evaluation"]["examples"] == 300

    _damage_all_recent_checkpoints(model)  # The best one does without them.
    assert cli.main(["evaluate", flagfile, "--checkpoint=best", "--group_by=user", f"--output={output}"]) == 0
    text = capsys.readouterr().out
    metrics = json.loads(text.splitlines()[-1])
    assert metrics["global_step"] == history["best"]["step"]
    assert metrics["auc"] == pytest.approx(history["best"]["value"], abs=1e-6)
    assert re.search(r"^decile +examples +predicted", text, re.MULTILINE)
    written = json.loads(output.read_text())
    assert len(written["reliability"]) == 10
    assert sum(row["weight"] for row in written["reliability"]) == 300
    assert {name: written[name] for name in metrics} == metrics
    assert cli.main(["evaluate", flagfile, "--output=metrics.parquet"]) == 1
    assert "evaluate writes JSON" in capsys.readouterr().err

    new_keys = metrics.pop("new_keys")
    assert new_keys["user"]["share"] == new_keys["tags"]["share"] == 0 < new_keys["user"]["in_training"]

    raw = f"--eval_data={data.parent / 'rows.csv'}"  # The export is of the best model too.
    export = [f"--saved_model={tmp_path / 'export'}", raw, "--group_by=user", f"--output={output}", "--threads=1"]
    assert cli.main(["evaluate", *export, "--batch_size=64"]) == 0
    served = json.loads(capsys.readouterr().out.splitlines()[-1])
    expected = {name: value for name, value in metrics.items() if name != "loss"}
    assert served.pop("saved_model") == str(tmp_path / "export")
    assert served.pop("new_keys") == new_keys
    assert served == pytest.approx(expected, abs=1e-5)
    assert cli.main(["evaluate", f"--saved_model={model}", raw]) == 1
    assert "expected an export of a model with a feature spec" in capsys.readouterr().err

    assert cli.main(["report", str(model)]) == 0
    text = capsys.readouterr().out
    assert f"{history['best']['value']:.5f} @{history['best']['step'] * 30}" in text  # 30 examples a step.


def test_ids_that_only_some_row_groups_lack_are_kept_and_group_the_examples(tmp_path, capsys):
    users = pa.array([None, None, 2**53 + 1, 7, 7, None, 2**53 + 1, 7], pa.int64())
    columns = {"y": [0, 1, 1, 0, 1, 0, 0, 1], "user": users, "x": [float(n) for n in range(8)]}
    spec = 'name = "ids"\nids = ["user"]\nlabel = {column = "y"}\ndense = [{name = "x"}]\n'
    (tmp_path / "ids.toml").write_text(f'{spec}sparse = [{{name = "member", column = "user", dim = 2}}]\n')
    found = []
    for rows in (2, 8):
        pq.write_table(pa.table(columns), data := tmp_path / f"{rows}.parquet", row_group_size=rows)
        own = f"--feature_spec={tmp_path / 'ids.toml'}", f"--model_dir={tmp_path / f'm{rows}'}", "--model=lr"
        flagfile = _flagfile(tmp_path, data, *own, "--batch_size=2", "--max_steps=4", "--epochs=0")
        assert cli.main(["train", flagfile]) == 0
        for column in ("user", "member"):
            assert cli.main(["evaluate", flagfile, f"--group_by={column}"]) == 0
            found.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
        assert cli.main(["predict", flagfile, f"--output={tmp_path / 'predicted.parquet'}"]) == 0
        assert pq.read_table(tmp_path / "predicted.parquet")["user"].combine_chunks() == users
        assert cli.main(["export", flagfile, f"--export_dir={tmp_path / str(rows)}"]) == 0
        capsys.readouterr()
        served = f"--saved_model={tmp_path / str(rows)}", "--format=parquet"
        for column in ("user", "member"):
            assert cli.main(["evaluate", *served, f"--eval_data={data}", f"--group_by={column}"]) == 0
            found.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
    assert [(each["gauc_groups"], each["gauc_groups_left_out"]) for each in found] == [(2, 0)] * 8


@pytest.mark.parametrize("command", ["evaluate", "importance", "predict", "export", "publish"])
def test_a_command_of_a_trained_model_takes_few_flags(capsys, command):
    module = importlib.import_module(f"ctr_trainer.commands.{command}")
    shown = {flag.name for group in flags.shown(module, is_full=True).values() for flag in group}
    assert shown == set(module.TAKES)
    assert len(shown) <= 35
    assert cli.main([command, "--model_dir=nowhere", "--early_stopping_patience=3", "--learning_rate=0.1"]) == 1
    assert "does not use" not in capsys.readouterr().err


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_shows_examples_and_at_most_40_flags_and_helpfull_all(capsys, command):
    module = importlib.import_module(f"ctr_trainer.commands.{command}")
    assert cli.main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"python -m ctr_trainer {command}" in text and "Examples:" in text
    has_its_own = command in ("launch", "convert", "serve", "service", "score")
    if module.GROUPS:
        assert f"\n{command.capitalize() if has_its_own else 'Model'}:\n" in text
    assert ("--max_steps" in text) == (command == "train")
    few = re.findall(r"^  --(\w+) ", text, re.MULTILINE)
    assert len(few) <= 40
    assert cli.main([command, "--helpfull"]) == 0
    all_flags = re.findall(r"^  --(\w+) ", capsys.readouterr().out, re.MULTILINE)
    assert set(few) <= set(all_flags)
    if not hasattr(module, "TAKES"):
        assert set(all_flags) - {"flagfile"} == {
            flag.name for group in flags.flags_of(module.GROUPS).values() for flag in group
        }


def test_predictions_are_calibrated_for_the_kept_share_of_negatives(tmp_path, data, capsys, caplog):
    def predicted(*more):
        assert cli.main(["predict", flagfile, f"--output={tmp_path / 'p.parquet'}", *more]) == 0
        return pq.read_table(tmp_path / "p.parquet")["logits"].to_numpy()

    flagfile = _flagfile(tmp_path, data, "--keep_checkpoint_max=0")
    model, share = tmp_path / "model", "--negative_sampling=0.1"
    with caplog.at_level("INFO"):
        assert cli.main(["train", flagfile, share]) == 0
    steps, examples = re.search(r"step 5, auc = \S+ \(([\d.]+) it/sec; ([\d.]+) examples/sec\)", caplog.text).groups()
    assert float(examples) / float(steps) == pytest.approx(32, rel=0.1)  # Rows of the data, with or without a weight.
    manifest = model / "checkpoints" / "step-0000000010" / "manifest.json"
    assert json.loads(manifest.read_text())["negative_sampling"] == 0.1
    calibrated = predicted()
    np.testing.assert_array_equal(predicted(share), calibrated)
    assert cli.main(["evaluate", flagfile]) == 0
    mean = json.loads(capsys.readouterr().out.splitlines()[-1])["prob_mean"]
    assert mean == pytest.approx((1 / (1 + np.exp(-calibrated))).mean(), abs=1e-6)
    for command in (["evaluate"], ["predict", "--output=x.parquet"], ["export", f"--export_dir={tmp_path / 'x'}"]):
        assert cli.main([*command, flagfile, "--negative_sampling=0.2"]) == 1
        error = capsys.readouterr().err
        assert "negative_sampling=0.2: " in error
        assert "was trained with negative_sampling=0.1" in error

    with caplog.at_level("INFO"):
        assert cli.main(["train", flagfile, "--negative_sampling=0.5", "--epochs=2"]) == 0
    assert any("training continues with negative_sampling=0.5; until " in r.getMessage() for r in caplog.records)
    assert cli.main(["evaluate", flagfile, "--negative_sampling=0.5"]) == 0
    np.testing.assert_array_equal(predicted("--checkpoint=10"), calibrated)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["fly"], 2, "no command 'fly'; there are train, launch, evaluate"),
        (["trian"], 2, "score; did you mean train?"),
        (["service", "stat"], 2, "needs one of stats, tables, save as its first argument; did you mean stats?"),
        (["train", "--max_step=3"], 2, "Did you mean: max_steps"),
        (["evaluate", "--max_stepss=3"], 2, "max_stepss"),
        (["train", "stray"], 2, "takes flags only, not stray"),
        (["export", "--export_dir=x", "--output=y"], 2, "export does not use --output"),
        (["train", "--hidden_units=8,wide"], 2, "expected integers as in 128,64"),
        (["train", "--train_data=x"], 1, "--model_dir is missing"),
        (["train", "--train_data=x", "--model_dir=y", "--epochs=0"], 1, "--epochs=0 never ends by itself"),
        (["train", "--train_data=x", "--model_dir=y", "--model=deep"], 1, "choose one of lr, fm, ffm"),
        (["train", "--train_data=x", "--model_dir=y", "--model=deepfn"], 1, "my.module:model_fn; did you mean deepfm?"),
        (["train", "--train_data=nowhere", "--model_dir=y"], 1, "data set nowhere: no such directory"),
        (["train", "--train_data=x", "--model_dir=y", "--best_metric=auc"], 1, "--best_metric=auc needs evaluations"),
        (["train", "--train_data=x", "--model_dir=y", "--eval_steps=5"], 1, "--eval_data is missing"),
        (["train", "--train_data=x", "--model_dir=y", "--eval_epochs=1"], 1, "--eval_data is missing"),
        (["train", "--train_data=x", "--profile_steps=9,3"], 2, "--profile_steps=9,3: expected the first"),
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


_WITHOUT_TENSORFLOW = [
    *([command, "--help"] for command in cli.COMMANDS),
    ["train", "--max_step=3"],
    ["train", "--train_data=nowhere", "--model_dir=nowhere"],
    ["train", "--train_data=nowhere", "--model_dir=."],
    ["train", "--train_data=.", "--model_dir=nowhere"],
    ["train", "--train_data=nowhere", "--model_dir=nowhere", "--model=deep"],
    ["train", "--train_data=nowhere", "--model_dir=nowhere", "--feature_spec=no.toml"],
    ["evaluate", "--eval_data=nowhere", "--model_dir=nowhere"],
    ["evaluate", "--eval_data=nowhere", "--model_dir=."],
    ["importance", "--eval_data=nowhere", "--model_dir=nowhere"],
    ["predict", "--eval_data=nowhere", "--model_dir=nowhere", "--output=out.parquet"],
    ["export", "--export_dir=out", "--model_dir=nowhere"],
    *(
        [*command, "--model_dir=."]
        for command in (
            ["evaluate", "--eval_data=."],
            ["predict", "--eval_data=.", "--output=out.parquet"],
            ["export", "--export_dir=out"],
            ["publish", "--to=out"],
        )
    ),
    ["evaluate", "--eval_data=.", "--model_dir=.", "--model=deepfn"],
    ["evaluate", "--eval_data=.", "--saved_model=nowhere"],
    ["train", "--train_data=nowhere", "--model_dir=.", "--model=no.such.module:model_fn"],
    ["convert", "--format=criteo", "--input=nowhere", "--output=out"],
    ["convert", "--format=csv", "--input=.", "--feature_spec=nowhere.toml", "--output=out"],
    ["convert", "--infer", "--input=nowhere", "--output=out.toml"],
    ["launch", "-np", "1", "--", "--train_data=.", "--model_dir=nowhere", "--model=deepfn"],
]


def test_help_and_wrong_paths_are_answered_without_tensorflow(tmp_path):
    program = f"""
import sys
from ctr_trainer import cli
for arguments in {_WITHOUT_TENSORFLOW!r}:
    status = cli.main(arguments)
    assert (status == 0) == ("--help" in arguments), arguments
    slow = {{"tensorflow", "horovod", "numba"}} & set(sys.modules)
    assert not slow, (arguments, slow)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_output_that_nobody_reads_is_no_error():
    program = f"{sys.executable} -c \"from ctr_trainer import cli; cli.main(['train', '--help'])\""
    command = f"{program} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_balanced_positive_weight_is_counted_logged_and_kept(tmp_path, data, caplog):
    (mean,) = json.loads((data / "_dataset.json").read_text())["label_means"].values()
    positive = round(mean * 300)
    weight = (300 - positive) / positive
    flagfile = _flagfile(tmp_path, data, "--max_steps=2", "--positive_weight=balanced")
    with caplog.at_level("INFO"):
        assert cli.main(["train", flagfile]) == 0
    said = f"--positive_weight=balanced: {weight:.6g}, the negative examples over the positive ones"
    assert said in caplog.messages
    assert json.loads((tmp_path / "model" / "flags.json").read_text())["flags"]["positive_weight"] == pytest.approx(
        weight
    )
    (record,) = (tmp_path / "model" / "checkpoints").glob("step-*/manifest.json")
    assert json.loads(record.read_text())["model"]["params"]["positive_weight"] == pytest.approx(weight)
    assert cli.main(["evaluate", flagfile]) == 0


def test_a_balanced_positive_weight_is_refused_for_models_of_several_labels(tmp_path, data, capsys):
    flagfile = _flagfile(tmp_path, data, "--positive_weight=balanced", "--model=mmoe")
    assert cli.main(["train", flagfile]) == 1
    assert "--positive_weight=balanced is of one label, and --model=mmoe predicts several" in capsys.readouterr().err
