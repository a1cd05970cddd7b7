"""The tables of jobs: workers and settings, from the results that workers write."""

import json

import figures
import jobs
import pytest
import settings
import sides
import worker
import workers
from figures import Figure, figure
from jobs import Job, Setup

from ctr_trainer.settings.by_flag import by_flag

GPU = {"busy": {"mean": 0.5, "max": 0.75}, "bytes": {"mean": 2e9, "max": 3e9}}


def rank(rate, step_seconds=0.01, seconds=None, accounted=1.0, service=None, **more):
    """Returns what a worker writes; with a service, there is a GPU, too."""
    load = {"cpu": 0.5, "network": {"lo": {"received": 2e6, "sent": 1e6}}, **({"service": service} if service else {})}
    phases = {"step_seconds": step_seconds, "seconds": seconds or {}, "accounted": accounted}
    memory = {"mean": 1e9, "max": 2e9, "ranks": [1e9, 2e9]}
    held = {"resident_bytes": memory, "service_resident_bytes": 5e8 if service else None, "gpu": service and GPU}
    found = {"examples_per_sec": rate, "phases": phases, "load": load, "held": held, "job_seconds": 9.0}
    return {**found, "accuracy": 0.9, "learning_rate": 0.1, "evaluation_seconds": 2.0, **more}


ALONE = [[rank(100.0, 0.010, {"forward": 0.004}, 0.95)], [rank(50.0, 0.020, {"forward": 0.008}, 0.93)]]
SERVICE = {"cpu": 0.1, "requests": 6.0}
TWO = [
    [rank(90.0, 0.011, {"forward": 0.004, "exchange": 0.002}, 0.97, SERVICE), rank(70.0, 0.013, {}, 0.91)],
    [rank(40.0, 0.025, {"forward": 0.008, "exchange": 0.004}, 0.97, SERVICE), rank(40.0, 0.025, {}, 0.98)],
]


def test_a_figure_is_the_median_and_its_range():
    rate = Figure((100.0, 1300.0, 250.4))
    assert f"{rate:,.0f}" == "250 (100 to 1,300)" and f"{Figure((0.5,)):.0%}" == "50%"
    assert figures.plain({1: [rate]}) == {
        "1": [{"median": 250.4, "min": 100.0, "max": 1300.0, "values": [100.0, 1300.0, 250.4]}]
    }
    assert figure([None, 3.0]) == Figure((3.0,)) and figure([None]) is None


@pytest.mark.parametrize("load", [2.5, 2.0])
def test_a_report_ends_with_json_and_names_failures_and_a_busy_machine(capsys, load):
    on = {**figures.machine(), "load": load, "cores": 2}
    with pytest.raises(SystemExit, match="failed: two"):
        figures.report("methods", on, ["deepfm on W1"], {"rounds": Figure((2.0,))}, {"two": "it broke"})
    first, *lines, last = capsys.readouterr().out.splitlines()
    busy = first == "Measured at a load of 2.5 on 2 cores, so the times are unreliable:"
    found = json.loads(last)
    assert found["overloaded"] is busy is (load > 2)
    assert found["bench"] == "methods" and found["rounds"]["median"] == 2.0 and found["failed"] == {"two": "it broke"}
    assert "two failed: it broke" in lines


def test_workers_are_summed_and_compared_with_one_worker_of_the_same_round():
    found = jobs.figures_of(TWO, ALONE)
    assert (found["together"].values, found["each"].values) == ((160.0, 80.0), (80.0, 40.0))
    assert found["efficiency"].values == pytest.approx((0.8, 0.8))
    assert (found["accounted"].values, found["cpu"].values) == ((0.91, 0.97), (1.0, 1.0))
    assert found["phases_ms"]["exchange"].values == pytest.approx((1.0, 2.0))  # The mean of the workers.
    assert {way: each.values for way, each in found["network"]["lo"].items()} == {
        "received": (2e6, 2e6),
        "sent": (1e6, 1e6),
    }
    assert found["service_requests"].values == (6.0, 6.0)
    assert (found["resident_bytes"].values, found["service_resident_bytes"].values) == ((2e9, 2e9), (5e8, 5e8))
    assert (found["gpu_busy"].values, found["gpu_bytes"].values) == ((0.5, 0.5), (3e9, 3e9))
    alone = jobs.figures_of(ALONE, None)
    assert alone["efficiency"] is alone["service_cpu"] is alone["service_resident_bytes"] is alone["gpu_busy"] is None
    assert jobs.figures_of(TWO, None, batches=5)["batch_ms"].values == pytest.approx((2.4, 5.0))


def test_the_table_has_a_column_for_each_job_and_a_row_for_each_known_figure():
    columns = {"1 worker": jobs.figures_of(ALONE, ALONE), "2 workers": jobs.figures_of(TWO, ALONE)}
    header, _, *rows = workers.table(columns, workers.ROWS)
    cells = {row.split(" | ")[0][2:]: row.strip("| ").split(" | ")[1:] for row in rows}
    assert header == "|  | 1 worker | 2 workers |"
    assert cells["examples/s, together"] == ["75 (50 to 100)", "120 (80 to 160)"]
    assert cells["memory of a worker, MB"] == ["2,000 (2,000 to 2,000)"] * 2
    assert cells["gradient exchange, ms"] == ["", "1.50 (1.00 to 2.00)"]
    assert "loss, ms" not in cells


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), (200, 20)),
        (("--accumulation_steps=10",), (20, 2)),
        (("--batch_size=4096",), (50, 5)),
        (("--accumulation_steps=20",), (9, 2)),  # 11 steps in all, two of which warm up, so that one is not traced.
        (("--batch_size=512",), (400, 40)),
    ],
)
def test_each_job_trains_on_as_many_examples(flags, expected):
    job = Setup((), 1, 200).job("job", 2, flags)
    assert (job.steps, job.warmup) == expected and job.flags == flags


def test_a_failed_job_is_named_and_not_repeated_and_rounds_have_seeds(monkeypatch):
    ran = []

    def run(self, *more):
        ran.append((self.name, *more))
        if self.name == "bad":
            raise SystemExit("it broke")
        return [rank(5.0)]

    monkeypatch.setattr(Job, "run", run)
    found, failed = Setup(("--seed=7",), 2, 4).measure([Job(name, 1, (), 4, 2) for name in ("good", "bad")])
    assert ran == [("good", "--seed=7"), ("bad", "--seed=7"), ("good", "--seed=8")]
    assert [*found] == ["good"] and len(found["good"]) == 2 and failed == {"bad": "it broke"}


def test_a_wrong_flag_and_data_without_evaluation_are_refused(tmp_path):
    with pytest.raises(SystemExit, match="flags of train: .*batchsize"):
        jobs.experiment_of(["--batchsize=4"])
    flags = jobs.parser(None, rows=1).parse_args(["--", f"--train_data={tmp_path}"])
    with pytest.raises(SystemExit, match="need both --train_data and --eval_data"):
        jobs.setup_with_data(flags, str(tmp_path))
    monkey = sides.environment({"PATH": str(tmp_path)})
    assert monkey["PATH"] == str(tmp_path)
    with pytest.raises(SystemExit, match="horovodrun: there is no such program; `make install` builds Horovod"):
        sides.call(["horovodrun"], {"PATH": str(tmp_path)})


def test_the_methods_train_on_equal_examples_with_the_rates_of_their_devices():
    setup = Setup(("--batch_size=32", "--learning_rate=0.1"), 1, 60)
    made = settings.methods(setup)
    assert [job.workers for job in made] == [1, 1, 2, 2]
    assert [job.steps + job.warmup for job in made] == [80, 40, 40, 8]
    assert {"--batch_size=64", "--learning_rate=0.2"} < {*made[1].flags} and made[1].towers == 2
    assert [job.core_shares for job in made] == [2, 1, 2, 2]


def evaluated(auc, rates=(100.0,), evaluations=(), **more):
    found = {"auc": auc, "logloss": 0.5, "copc": 1.1, "training_auc": 0.6, "training_accuracy": 0.8}
    found["evaluations"] = [
        {"step": 10 * (i + 1), "auc": each, "accuracy": 0.95 - 0.01 * i} for i, each in enumerate((*evaluations, auc))
    ]
    return [rank(rate, **more, **found) for rate in rates]


def test_accumulation_makes_fewer_steps_with_evenly_spaced_evaluations():
    (made,) = settings.variants("accumulation_steps", Setup(("--batch_size=64",), 1, 200), 2, [1, 8])
    assert (made.workers, made.steps, made.warmup) == (2, 26, 2)
    assert settings.evaluated(made).flags == ("--batch_size=64", "--accumulation_steps=8", "--eval_steps=6")


def test_a_setting_has_its_examples_time_and_best_evaluation():
    job = Job("4", 2, ("--batch_size=50", "--accumulation_steps=4"), 8, 2)
    one = [evaluated(0.70, evaluations=(0.65, 0.72)), evaluated(0.71)]
    four = [evaluated(0.69, (150.0, 50.0)), evaluated(0.705, (60.0, 40.0))]
    found, of_one = settings.summarize(job, four, one), settings.summarize(job, one, None)
    assert (found["batch_size"], found["optimizer_steps"], found["examples"]) == (400, 10, 4000)
    assert found["seconds"].values == (20.0, 40.0) and found["seconds_with_evaluations"].values == (22.0, 42.0)
    assert found["saved_percent"].values == (50.0, 0.0) and of_one["saved_percent"] is None
    assert of_one["best_auc"].values == (0.72, 0.71) and of_one["best_accuracy"].values == (0.95, 0.95)
    assert found["auc_change"].values == pytest.approx((-0.01, -0.005))
    titles, _, *rows = settings.table({"1": of_one, "4": found, "8": of_one}, 1)
    column = titles.split(" | ").index("best so far")
    assert [row.split(" | ")[column].strip() for row in rows] == ["*", "", ""]


def test_the_rate_of_a_worker_excludes_its_evaluations_and_labels_are_averaged():
    phases = {"step_seconds": 0.5, "seconds": {"forward": 0.2, "evaluation": 0.1}}
    trained = {"phases": phases, "load": {}, "resident_bytes": 1, "service_resident_bytes": None, "gpu": None}
    one = {"step": 5, "auc": 0.7, "accuracy": 0.8, "logloss": 0.5, "copc": 0.9, "brier": 0.1}
    found = worker.result(0, {**trained, "auc": 0.6}, [one], 200)
    assert found["examples_per_sec"] == pytest.approx(500) and found["training_auc"] == 0.6
    assert {name: found[name] for name in one if name in found} == {
        name: one[name] for name in ("auc", "accuracy", "logloss", "copc")
    }
    assert found["evaluations"] == [{"step": 5, "auc": 0.7, "accuracy": 0.8}]
    assert "auc" not in worker.result(0, trained, [], 200)
    labels = {"auc/click": 0.5, "auc/buy": 0.6, "auc_pr/click": 0.0, "copc/click": 1.0, "copc/buy": 1.2}
    found = worker.result(0, {**trained, "auc/click": 0.6, "auc/buy": 0.8}, [{"step": 1, **labels}], 200)
    assert (found["training_auc"], found["auc"], found["copc"]) == pytest.approx((0.7, 0.55, 1.1))


def test_the_training_accuracy_covers_all_lines_of_the_log(tmp_path):
    """The last line has half as many steps as the others; with several labels each has their mean."""
    lines = [{"step": 10}, {"step": 30, "accuracy": 0.5}, {"step": 50, "accuracy": 0.7}]
    lines += [{"step": 60, "accuracy/click": 0.8, "accuracy/buy": 1.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert worker.training_accuracy(str(tmp_path)) == pytest.approx((20 * 0.5 + 20 * 0.7 + 10 * 0.9) / 50)


@pytest.mark.parametrize("axis", settings.FLAG_AXES)
def test_every_variant_of_an_axis_changes_its_flag(axis):
    setup = Setup((), 1, 200)
    own = by_flag(setup.experiment)[axis]
    made = settings.variants(axis, setup, 2)
    assert made and all(by_flag(jobs.experiment_of(job.flags))[axis] != own for job in made)


def test_axes_vary_around_the_given_value_and_unknown_ones_are_refused(capsys):
    made = settings.variants("sync_steps", Setup(("--sync_steps=10",), 1, 200), 2)
    assert [job.name for job in made] == ["sync_steps=1", "sync_steps=30", "sync_steps=100"]
    (job,) = settings.variants("hierarchical_allreduce", Setup((), 1, 200), 2)
    assert job.flags == ("--dense_exchange=horovod",) and job.environment == (("HOROVOD_HIERARCHICAL_ALLREDUCE", "1"),)
    with pytest.raises(SystemExit):
        settings.main(["--axes=sync_step"])
    assert "there is no axis sync_step: choose from tensor_fusion" in capsys.readouterr().err


def test_a_setting_has_speed_auc_times_and_memory_against_the_same_round():
    seconds = {"read_sample": 0.001, "input_to_device": 0.004}
    phases = {"step_seconds": 0.01, "seconds": seconds}
    default = [[*evaluated(0.70, (90.0,)), rank(10.0)], [*evaluated(0.72, (40.0,)), rank(10.0)]]
    rounds = [[*evaluated(0.69, (140.0,), service=SERVICE, **phases), rank(10.0)]]
    rounds += [[*evaluated(0.73, (90.0,)), rank(10.0)]]
    job = Job("other", 2, (), 8, 2)
    found, alone = settings.summarize(job, rounds, default), settings.summarize(job, default, None)
    assert (found["together"].values, found["speedup"].values) == ((150.0, 100.0), (1.5, 2.0))
    assert found["auc_change"].values == pytest.approx((-0.01, 0.01))
    assert found["read_sample_ms"].values == pytest.approx((0.5, 0.0))
    assert alone["speedup"] is None
    several, one = ("\n".join(settings.table({"other": found}, rounds)) for rounds in (2, 1))
    assert "+0.0000 (-0.0100 to +0.0100)" in several and "AUC change" not in one
    assert "| service, MB |" in one and "| GPU, MB |" in one and "service" not in settings.table({"d": alone}, 1)[0]


SMALL = ["--rounds=1", "--steps=30", "--", "--batch_size=64", "--hidden_units=8", "--threads=1"]


def last_line(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.integration
def test_a_real_run_of_each_size_has_the_phases_of_a_step(capsys, warm_python):
    large = ["--rounds=1", "--steps=12", "--", "--batch_size=1024", "--hidden_units=64", "--sync_steps=4"]
    workers.main(["--workers=1,2", *large])
    found = last_line(capsys)
    assert found["machine"]["versions"]["horovod"] and found["failed"] == {}
    one, two = found["sizes"]["1"], found["sizes"]["2"]
    assert one["efficiency"]["values"] == [1.0]
    expected = two["together"]["median"] / (2 * one["together"]["median"])
    assert two["efficiency"]["median"] == pytest.approx(expected)
    for size in (one, two):
        assert 0 < size["accounted"]["median"] <= 1.0001  # The loop between steps is in no phase.
        for phase in ("embedding_lookup", "input_to_device", "forward", "loss", "backward", "dense_update", "push"):
            assert size["phases_ms"][phase]["median"] > 0, phase
    assert two["phases_ms"]["exchange"]["median"] > 0 and "exchange" not in one["phases_ms"]
    assert two["service_requests"]["median"] > 0 and one["service_requests"] is None
    assert two["network"]["lo"]["sent"]["median"] > 0


@pytest.mark.integration
def test_a_real_run_measures_methods_and_accumulation_on_equal_examples(capsys, warm_python):
    settings.main(["--workers=1", "--axes=methods,accumulation_steps", "--accumulation_steps=4", "--rows=3000", *SMALL])
    found = last_line(capsys)
    names = ["one worker", "one process, two towers", "two processes", "two processes, 5 batches a step"]
    rows = found["settings"]
    assert [*rows] == ["default", "accumulation_steps=4", *names] and found["failed"] == {}
    for row in rows.values():
        assert row["seconds_with_evaluations"]["median"] > row["seconds"]["median"] > 0
        assert row["examples"] == 2560 and 0 < row["training_auc"]["median"] < 1
        (evaluations,) = row["evaluations"]
        assert row["auc"]["median"] == evaluations[-1]["auc"]
        assert row["best_auc"]["median"] == max(each["auc"] for each in evaluations)
    assert [each["step"] for each in rows["accumulation_steps=4"]["evaluations"][0]] == [2, 4, 6, 8, 10]
    one, towers, *_ = (rows[name]["learning_rate"]["median"] for name in names)
    assert towers == pytest.approx(2 * one)
    assert [rows[name]["batch_size"] for name in names] == [64, 128, 128, 640]
    expected = rows["two processes"]["together"]["median"] / rows["one worker"]["together"]["median"]
    assert rows["two processes"]["speedup"]["median"] == pytest.approx(expected)
