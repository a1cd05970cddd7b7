"""Batches accumulated in a step, at equal examples and at equal optimizer steps."""

import json

import pytest

from ctr_trainer import cli
from ctr_trainer.bench import accumulation, worker
from ctr_trainer.bench.accumulation import AccumulationSetting
from ctr_trainer.bench.job_flags import BenchFlags, job_flags
from ctr_trainer.bench.report import Figure
from ctr_trainer.commands import bench
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.system.messages.errors import UserError
from tests.bench.test_settings import _experiment


def _settings(batches, *equal):
    return accumulation.settings(batches, equal, BenchFlags(workers=(1, 2), steps=200), _experiment())


def _round(auc, training_auc=0.6, rates=(100.0,), evaluations=()):
    found = {"auc": auc, "accuracy": 0.9, "logloss": 0.5, "copc": 1.1, "training_auc": training_auc}
    found |= {"evaluation_seconds": 2.0, "learning_rate": 0.05, "training_accuracy": 0.8}
    found["evaluations"] = [
        {"step": 10 * (i + 1), "auc": each, "accuracy": 0.95 - 0.01 * i} for i, each in enumerate((*evaluations, auc))
    ]
    return [{**found, "examples_per_sec": rate} for rate in rates]


def test_equal_examples_make_fewer_steps_and_equal_steps_read_more_examples():
    found = _settings((4, 2, 4), "steps", "examples")
    assert list(found) == ["examples", "steps"]
    batch = 2 * 1024  # of two workers
    one = AccumulationSetting(1, 200, 20, batch)
    assert found["examples"] == [one, AccumulationSetting(2, 100, 10, batch), AccumulationSetting(4, 50, 5, batch)]
    assert found["steps"] == [one, AccumulationSetting(2, 200, 20, batch), AccumulationSetting(4, 200, 20, batch)]
    assert [each.examples for each in found["examples"]] == [450_560] * 3
    assert [each.examples for each in found["steps"]] == [450_560, 901_120, 1_802_240]
    assert [each.optimizer_steps for each in found["examples"]] == [220, 110, 55]


def test_one_batch_a_step_is_always_measured_and_a_remainder_is_told():
    one, eight = _settings((8,), "examples")["examples"]
    assert (one.batches, eight.batches) == (1, 8)
    assert (eight.optimizer_steps, eight.examples) == (28, 28 * 8 * 2048)  # 27.5 steps would be equal
    assert [each.batches for each in _settings((), "steps")["steps"]] == [1, 2, 4, 8]


@pytest.mark.parametrize("equal", [(), ("rows",), ("steps", "rows")])
def test_what_is_to_be_equal_is_examples_or_steps(equal):
    with pytest.raises(UserError, match="expected examples or steps, or both"):
        _settings((2,), *equal)


@pytest.mark.parametrize(("evaluations", "every"), [(1, 28), (5, 6), (28, 1), (100, 1)])
def test_evaluations_are_evenly_spaced_and_at_most_one_a_step(evaluations, every):
    (_, setting) = _settings((8,), "examples")["examples"]
    job = accumulation.job(setting, _experiment("--batch_size=64"), 2, evaluations)
    assert job.flags == ("--batch_size=64", "--accumulation_steps=8", f"--eval_steps={every}")
    assert (job.workers, job.steps, job.warmup) == (2, 26, 2)


def test_the_time_covers_all_examples_and_the_best_auc_all_evaluations():
    rounds = [_round(0.70, 0.60, (150.0, 50.0), (0.65, 0.72)), _round(0.71, 0.62, (60.0, 40.0), (0.6, 0.7))]
    found = accumulation.summarize(rounds, 1000)
    assert found["together"].values == (200.0, 100.0)
    assert found["seconds"].values == (5.0, 10.0)
    assert found["seconds_with_evaluations"].values == (7.0, 12.0)
    assert found["training_auc"].values == (0.60, 0.62)
    assert found["auc"].values == (0.70, 0.71)
    assert found["best_auc"].values == (0.72, 0.71)
    assert (found["training_accuracy"].values, found["accuracy"].values) == ((0.8, 0.8), (0.9, 0.9))
    assert found["best_accuracy"].values == (0.95, 0.95)
    assert (found["logloss"].values, found["copc"].values) == ((0.5, 0.5), (1.1, 1.1))


def test_the_change_at_equal_examples_is_by_larger_batches_and_fewer_steps():
    one = Figure((0.80, 0.81))
    aucs = {"examples": {1: one, 4: Figure((0.77, 0.79))}, "steps": {1: one, 4: Figure((0.79, 0.82))}}
    (four,) = accumulation.auc_changes(aucs).values()
    assert four["examples"].values == pytest.approx((-0.03, -0.02))
    assert four["steps"].values == pytest.approx((-0.01, 0.01))
    assert four["fewer_steps"].values == pytest.approx((-0.02, -0.03))


def test_changes_are_of_what_was_measured():
    two = Figure((0.7,))
    assert accumulation.auc_changes({"examples": {2: two}}) == {}  # One batch a step has failed.
    alone = accumulation.auc_changes({"steps": {1: two, 2: Figure((0.75,))}})
    assert list(alone) == [2] and list(alone[2]) == ["steps"]


def test_rows_say_whether_they_are_the_best_so_far_and_leave_out_what_failed():
    own = [AccumulationSetting(batches, 8, 2, 100) for batches in (1, 2, 4, 8)]
    aucs = {1: 0.70, 4: 0.69, 8: 0.71}
    runs = {each.name: [_round(aucs[each.batches])] for each in own if each.batches in aucs}
    found = accumulation.table_rows(own, runs)
    assert [(row.setting.batches, row.best_so_far) for row in found] == [(1, True), (4, False), (8, True)]
    heading, one, four, eight = accumulation.report_lines({"steps": found}, {}, 1)[2:6]
    assert heading.split("  ")[0] == "batches a step" and heading.endswith("best in the run  log loss   COPC")
    assert one.split() == (
        "1 100 10 1,000 0.05 10.0 12.0 100 - 0.6000 0.8000 0.9000 0.9500 0.7000 0.7000 * 0.5000 1.100".split()
    )
    assert four.split() == (
        "4 400 10 4,000 0.05 40.0 42.0 100 +0 0.6000 0.8000 0.9000 0.9500 0.6900 0.6900 0.5000 1.100".split()
    )
    assert "0.7100 *" in eight


def test_changes_are_shown_of_several_rounds_only():
    larger, fewer = Figure((0.0, 0.1)), Figure((-0.03, -0.12))
    changes = {4: {"examples": Figure((-0.03, -0.02)), "steps": larger, "fewer_steps": fewer}}
    *_, heading, four, _ = accumulation.report_lines({}, changes, 2)
    assert [part.strip() for part in heading.split("  ") if part.strip()] == [
        *("batches a step", "equal examples", "equal steps: larger batches", "fewer steps")
    ]
    ranges = "(-0.0300--0.0200)", "(+0.0000-+0.1000)", "(-0.1200--0.0300)"
    assert four.split() == ["4", "-0.0250", ranges[0], "+0.0500", ranges[1], "-0.0750", ranges[2]]
    assert not any("larger batches" in line for line in accumulation.report_lines({}, changes, 1))


def test_the_rate_of_a_worker_is_without_its_evaluations():
    phases = {"step_seconds": 0.5, "seconds": {"forward": 0.2, "evaluation": 0.1}}
    held = dict(resident_bytes=1, service_resident_bytes=None, gpu=None)
    trained = {"phases": phases, "load": {}, "auc": 0.6, **held}
    evaluations = [
        {"step": 5, "auc": 0.7, "accuracy": 0.8, "logloss": 0.5, "copc": 0.9, "brier": 0.1},
        {"step": 10, "auc": 0.6, "accuracy": 0.9, "logloss": 0.4, "copc": 1.1, "brier": 0.1},
    ]
    found = worker.result(0, trained, evaluations, 200)
    assert found["examples_per_sec"] == pytest.approx(500)
    assert {name: found[name] for name in ("auc", "accuracy", "logloss", "copc", "training_auc")} == dict(
        auc=0.6, accuracy=0.9, logloss=0.4, copc=1.1, training_auc=0.6
    )
    assert found["evaluations"] == [
        {"step": 5, "auc": 0.7, "accuracy": 0.8},
        {"step": 10, "auc": 0.6, "accuracy": 0.9},
    ]
    assert "auc" not in worker.result(0, trained, [], 200)


def test_the_accuracy_of_the_training_examples_is_of_all_lines_of_the_log(tmp_path):
    """The last line has half as many steps as the others; with several labels each has the mean of them."""
    lines = [{"step": 10}, {"step": 30, "accuracy": 0.5}, {"step": 50, "accuracy": 0.7}]
    lines += [{"step": 60, "accuracy/click": 0.8, "accuracy/buy": 1.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert worker.training_accuracy(str(tmp_path)) == pytest.approx((20 * 0.5 + 20 * 0.7 + 10 * 0.9) / 50)


def test_of_several_labels_a_worker_gives_the_means():
    own = {"phases": {"step_seconds": 2.0, "seconds": {}}, "load": {}}
    trained = {**own, "resident_bytes": {}, "service_resident_bytes": None, "gpu": None}
    trained |= {"auc/click": 0.6, "auc/buy": 0.8}
    of_labels = {"auc/click": 0.5, "auc/buy": 0.6, "auc_pr/click": 0.0, "copc/click": 1.0, "copc/buy": 1.2}
    evaluations = [{"step": 10, **of_labels, "logloss/click": 0.1, "logloss/buy": 0.3}]
    found = worker.result(0, trained, evaluations, 200)
    assert (found["training_auc"], found["auc"]) == pytest.approx((0.7, 0.55))
    assert (found["logloss"], found["copc"]) == pytest.approx((0.2, 1.1))
    assert found["evaluations"] == [{"step": 10, "auc": pytest.approx(0.55)}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["accumulation", "--accumulation_steps=-1,2"], "--accumulation_steps=-1,2 must each be at least 0"),
        (["settings", "--accumulation_steps=2,4"], "--accumulation_steps=2,4: `bench settings` takes one number"),
        (["accumulation", "--equal=rows"], "--equal=rows: expected examples or steps"),
    ],
)
def test_a_mistake_is_named_before_anything_starts(tmp_path, capsys, arguments, message):
    assert cli.main(["bench", *arguments, f"--output={tmp_path / 'out'}"]) in (1, 2)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_no_accumulation_is_0_or_1():
    assert [each.batches for each in _settings((0, 4), "steps")["steps"]] == [1, 4]
    assert _experiment("--accumulation_steps=0") == _experiment()
    assert TrainOp("sgd", 0.1, 0.1, accumulation_steps=0) == TrainOp("sgd", 0.1, 0.1)


def test_other_benchmarks_take_one_number_of_accumulation_steps(monkeypatch):
    taken = []
    monkeypatch.setattr(bench.scaling, "run", lambda bench, experiment: taken.append(experiment))
    assert cli.main(["bench", "scaling", "--accumulation_steps=5", "--batch_size=64"]) == 0
    assert cli.main(["bench", "scaling"]) == 0
    assert job_flags(taken[0]) == ("--batch_size=64", "--accumulation_steps=5")
    assert job_flags(taken[1]) == ()


@pytest.mark.integration
def test_a_real_run_measures_a_list_at_equal_examples_and_at_equal_steps(tmp_path, capsys, warm_python):
    sizes = ["--rows=3000", "--batch_size=32", "--hidden_units=8", "--steps=30", "--rounds=1"]
    asked = ["--workers=1", "--accumulation_steps=0,4", "--equal=examples,steps"]
    assert cli.main(["bench", "accumulation", f"--output={tmp_path}", *asked, *sizes]) == 0
    shown = capsys.readouterr().out
    assert "Equal examples:" in shown and "Equal optimizer steps:" in shown
    found = json.loads((tmp_path / "accumulation.json").read_text())
    assert found["failed"] == {} and found["workers"] == 1
    sizes = {
        equal: [(row["accumulation_steps"], row["optimizer_steps"], row["examples"]) for row in rows]
        for equal, rows in found["equal"].items()
    }
    assert sizes == {"examples": [(1, 40, 1280), (4, 10, 1280)], "steps": [(1, 40, 1280), (4, 40, 5120)]}
    assert found["equal"]["examples"][0] == found["equal"]["steps"][0]
    for row in (row for rows in found["equal"].values() for row in rows):
        (evaluations,) = row["evaluations"]
        assert [each["step"] for each in evaluations] == [row["optimizer_steps"] * n // 5 for n in (1, 2, 3, 4, 5)]
        assert row["auc"]["median"] == evaluations[-1]["auc"]
        assert row["best_auc"]["median"] == max(each["auc"] for each in evaluations)
        assert 0 < row["training_auc"]["median"] < 1 and row["seconds"]["median"] > 0
        assert 0 < row["training_accuracy"]["median"] < 1
        assert row["best_accuracy"]["median"] == max(each["accuracy"] for each in evaluations)
    whole, larger, fewer = (found["auc_change"]["4"][name]["median"] for name in ("examples", "steps", "fewer_steps"))
    assert whole == pytest.approx(larger + fewer)
    assert (tmp_path / "synthetic-5120").is_dir()  # So that no run reads an example twice.
    assert (tmp_path / "accumulation.png").exists()
