"""Settings that are varied one at a time, on equal numbers of examples."""

import json

import pytest

from ctr_trainer import cli
from ctr_trainer.bench import settings
from ctr_trainer.bench.job_flags import BenchFlags, equal_examples, job_flags, with_data
from ctr_trainer.bench.settings import ONE_ROUND, lines, summarize
from ctr_trainer.commands.experiment import flags
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.settings.by_flag import by_flag
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import hardware
from tests import small


def _experiment(*arguments):
    values = flags.define([Experiment])
    values(["bench", *arguments])
    return flags.read(Experiment, values)


def test_an_axis_leaves_out_the_value_that_is_there_already():
    names = [variant.name for variant in settings.variants("sync_steps", _experiment("--sync_steps=10"))]
    assert names == ["sync_steps=1", "sync_steps=30", "sync_steps=100"]
    (half,) = settings.variants("fp16_allreduce", _experiment())
    assert half.flags == ("--fp16_allreduce=true", "--dense_exchange=horovod")


@pytest.mark.parametrize("axis", settings.FLAG_AXES)
def test_every_variant_is_made_of_flags_that_train_accepts(axis):
    default = _experiment()
    for variant in settings.variants(axis, default):
        assert by_flag(_experiment(*variant.flags))[axis] != by_flag(default)[axis]


def test_an_axis_that_is_none_is_refused_with_those_that_are():
    assert settings.chosen(()) == list(settings.AXES)
    assert settings.chosen(("batch_size", "autotune")) == ["autotune", "batch_size"]
    with pytest.raises(UserError, match="no axis sync_step; there are autotune, tensor_fusion"):
        settings.chosen(("sync_step",))


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ((), (200, 20)),
        (("--accumulation_steps=10",), (20, 2)),
        (("--batch_size=4096",), (50, 5)),
        (("--accumulation_steps=20",), (9, 2)),  # 11 steps in all, two of which warm up, so that one is not traced
        (("--batch_size=512",), (400, 40)),
    ],
)
def test_each_setting_trains_on_as_many_examples(variant, expected):
    assert equal_examples(variant, BenchFlags(steps=200), _experiment()) == expected


def test_flags_that_are_handed_on_are_those_that_differ_but_for_the_jobs_own():
    found = _experiment("--batch_size=64", "--max_steps=9", "--model_dir=m", "--eval_data=e", "--num_readers=2")
    assert job_flags(found) == ("--batch_size=64", "--num_readers=2")
    assert job_flags(found, evaluate=True) == ("--eval_data=e", "--batch_size=64", "--num_readers=2")
    assert _experiment(*job_flags(found)).data.batch_size == 64
    assert _experiment(*job_flags(found)).data.num_readers == 2


@pytest.mark.parametrize(
    ("arguments", "deterministic"),
    [((), True), (("--sync_compression=fp16",), False), (("--autotune",), False)],
)
def test_jobs_whose_auc_is_compared_are_deterministic_where_possible(tmp_path, arguments, deterministic):
    data = small.make(tmp_path, rows=16)
    experiment = _experiment(f"--train_data={data}", f"--eval_data={data}", *arguments)
    found = with_data(BenchFlags(), experiment)
    assert ("--deterministic=True" in job_flags(found, evaluate=True)) == deterministic


def test_jobs_on_limited_tables_are_not_deterministic(tmp_path):
    data = small.make(tmp_path, rows=16)
    spec = tmp_path / "limited.toml"
    spec.write_text(small.SPEC + '\n[[limits]]\ntable = "dim4"\nmax_rows = 50\n')
    experiment = _experiment(f"--train_data={data}", f"--eval_data={data}", f"--feature_spec={spec}")
    assert not with_data(BenchFlags(), experiment).run.deterministic


def _rank(rate, auc, read=0.001, feed=0.002, resident=10**8, service=None, gpu=None):
    """What a worker leaves; seconds of a step."""
    return {
        "examples_per_sec": rate,
        "auc": auc,
        "job_seconds": 9.0,
        "phases": {"step_seconds": 0.01, "accounted": 1.0, "seconds": {"read_sample": read, "input_to_device": feed}},
        "load": {"cpu": 1.0, "network": {}},
        "held": {"resident_bytes": {"mean": resident, "max": resident}, "service_resident_bytes": service, "gpu": gpu},
    }


def test_speed_and_auc_stand_beside_each_other_against_the_same_round():
    def ranks(rate, auc):
        return [_rank(rate, auc), _rank(10.0, auc)]

    default = [ranks(90.0, 0.70), ranks(40.0, 0.72)]
    found = summarize([ranks(140.0, 0.69), ranks(90.0, 0.73)], default)
    assert found["together"].values == (150.0, 100.0)
    assert found["speedup"].values == (1.5, 2.0)
    assert found["auc_change"].values == pytest.approx((-0.01, 0.01))
    assert summarize(default, None)["speedup"] is None


def test_a_change_of_auc_is_shown_with_its_range_of_several_rounds_only():
    def ranks(auc):
        return [_rank(100.0, auc)]

    default, other = [ranks(0.70), ranks(0.72)], [ranks(0.71), ranks(0.70)]
    for rounds, shown in ((2, "-0.0050 (-0.0200-+0.0100)"), (1, None)):
        rows = {"other": summarize(other[:rounds], default[:rounds])}
        text = "\n".join(lines(rows, [], BenchFlags(rounds=rounds), _experiment(), 1))
        assert ("AUC change" in text) == (rounds > 1), text
        assert shown is None or shown in text, text


def test_the_time_to_the_device_is_the_mean_of_the_workers():
    gpu = {"busy": {"mean": 0.25, "max": 0.5}, "bytes": {"mean": 10**9, "max": 2 * 10**9}}
    held = dict(resident=3 * 10**8, service=2 * 10**8, gpu=gpu)
    row = summarize([[_rank(100.0, 0.7, 0.001, 0.004, **held), _rank(100.0, 0.7, 0.003, 0.002, **held)]], None)
    assert row["read_sample_ms"].median == pytest.approx(2.0)  # Of 1 and 3 ms.
    assert row["input_to_device_ms"].median == pytest.approx(3.0)
    text = lines({"default": row}, [], BenchFlags(rounds=1), _experiment(), 2)
    assert text[2].split("AUC")[1].split() == (
        "read sample, ms input to device, ms worker, MB service, MB GPU busy GPU, MB".split()
    )
    assert text[3].split() == ["default", "200", "-", "0.7000", "2.00", "3.00", "300", "200", "25%", "2,000"]


def test_what_no_setting_has_is_no_column():
    row = summarize([[_rank(100.0, 0.7)]], None)
    text = lines({"default": row}, [], BenchFlags(rounds=1), _experiment(), 1)
    assert text[2].endswith("worker, MB") and text[3].endswith(" 100")


@pytest.mark.integration
def test_a_real_run_gives_speed_and_auc_and_makes_its_data_once(tmp_path, capsys, monkeypatch, warm_python):
    monkeypatch.setattr(hardware, "has_bfloat16", lambda: False)
    small = ["--rows=3000", "--batch_size=64", "--hidden_units=8", "--steps=12", "--rounds=1"]
    asked = ["--workers=1", "--axes=fp16_allreduce,mixed_precision", f"--output={tmp_path}"]
    command = ["bench", "settings", *asked, *small]
    assert cli.main(command) == 0
    shown = capsys.readouterr().out
    assert "examples/s together  over default  " in shown
    assert "AUC change " not in shown.replace(ONE_ROUND, "") and ONE_ROUND in shown
    found = json.loads((tmp_path / "settings.json").read_text())
    assert list(found["settings"]) == ["default", "fp16_allreduce=true", "mixed_precision=bfloat16"]
    assert found["failed"] == {}
    default, half, without_instructions = found["settings"].values()
    assert without_instructions is None
    assert "mixed_precision=bfloat16 is left out: this processor has no instructions for bfloat16" in shown
    # One worker exchanges nothing, so that the setting cannot change what it learns.
    assert half["auc"] == default["auc"] and half["auc_change"]["values"] == [0.0]
    assert default["resident_bytes"]["median"] > 10**7 and default["read_sample_ms"]["median"] > 0
    assert 0 < default["auc"]["median"] < 1 and default["speedup"]["values"] == [1.0]
    assert half["speedup"]["median"] == pytest.approx(half["together"]["median"] / default["together"]["median"])
    assert (tmp_path / "settings.png").exists() and (tmp_path / "settings_auc.png").exists()

    class Stopped(BaseException):
        """The jobs would start now. Not an Exception, which the command would put into words."""

    def start(self, directory, timeout):
        raise Stopped

    monkeypatch.setattr("ctr_trainer.bench.jobs.Job.run", start)
    monkeypatch.delattr("ctr_trainer.bench.job_flags.run_command")  # Which makes the data.
    with pytest.raises(Stopped):
        cli.main(command)


def test_training_data_need_data_to_evaluate_on(tmp_path, capsys):
    data = small.make(tmp_path, rows=40)
    assert cli.main(["bench", "settings", f"--output={tmp_path / 'bench'}", f"--train_data={data}"]) == 1
    assert "need both --train_data and --eval_data" in capsys.readouterr().err
