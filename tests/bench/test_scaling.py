"""What `bench scaling` makes of the workers' results, and one real run of it."""

import json

import pytest

from ctr_trainer import cli
from ctr_trainer.bench.jobs import Job, run_rounds
from ctr_trainer.bench.scaling import summarize
from ctr_trainer.system.messages.errors import UserError


def _rank(rate, step_seconds, seconds, accounted, service=None):
    load = {"cpu": 0.5, "network": {"lo": {"received": 2e6, "sent": 1e6}}, **({"service": service} if service else {})}
    phases = {"step_seconds": step_seconds, "seconds": seconds, "accounted": accounted}
    gpu = {"busy": {"mean": 0.5, "max": 0.75}, "bytes": {"mean": 2e9, "max": 3e9}} if service else None
    held = {"resident_bytes": {"mean": 1e9, "max": 2e9}, "service_resident_bytes": 5e8 if service else None, "gpu": gpu}
    return {"examples_per_sec": rate, "phases": phases, "load": load, "held": held, "job_seconds": 9.0}


ALONE = [[_rank(100.0, 0.010, {"forward": 0.004}, 0.95)], [_rank(50.0, 0.020, {"forward": 0.008}, 0.93)]]
SERVICE = {"cpu": 0.1, "requests": 6.0}
TWO = [
    [_rank(90.0, 0.011, {"forward": 0.004, "exchange": 0.002}, 0.97, SERVICE), _rank(70.0, 0.013, {}, 0.91)],
    [_rank(40.0, 0.025, {"forward": 0.008, "exchange": 0.004}, 0.97, SERVICE), _rank(40.0, 0.025, {}, 0.98)],
]


def test_workers_are_summed_and_compared_with_one_worker_of_the_same_round():
    found = summarize(TWO, ALONE)
    assert found.together.values == (160.0, 80.0)
    assert found.each.values == (80.0, 40.0)
    assert found.efficiency.values == pytest.approx((0.8, 0.8))
    assert found.batch_ms.values == pytest.approx((12.0, 25.0))
    assert found.accounted.values == (0.91, 0.97)
    assert found.cpu.values == (1.0, 1.0)


def test_phases_are_the_mean_of_the_workers_and_the_load_is_of_rank_0s_machine():
    found = summarize(TWO, ALONE)
    assert found.phases_ms["exchange"].values == pytest.approx((1.0, 2.0))
    network = {way: figure.values for way, figure in found.network["lo"].items()}
    assert network == {"received": (2e6, 2e6), "sent": (1e6, 1e6)}
    assert found.service_requests.values == (6.0, 6.0)
    assert found.resident_bytes.values == (2e9, 2e9)
    assert found.service_resident_bytes.values == (5e8, 5e8)
    assert (found.gpu_busy.values, found.gpu_bytes.values) == ((0.5, 0.5), (3e9, 3e9))
    alone = summarize(ALONE, ALONE)
    assert alone.service_cpu is alone.service_resident_bytes is alone.gpu_busy is None


def test_a_step_of_several_batches_has_its_time_divided():
    found = summarize(TWO, None, batches=5)
    assert found.batch_ms.values == pytest.approx((2.4, 5.0))
    assert found.efficiency is None


def test_a_job_that_fails_is_named_and_not_run_again(tmp_path, monkeypatch):
    ran = []

    def run(self, directory, timeout):
        ran.append(self.name)
        if self.name == "bad":
            raise UserError("it broke")
        return [{"rank": 0}]

    monkeypatch.setattr(Job, "run", run)
    jobs = [Job(name, 1, (), 4, 2) for name in ("good", "bad")]
    runs, failed = run_rounds(jobs, 2, tmp_path, 60)
    assert ran == ["good", "bad", "good"]
    assert runs == {"good": [[{"rank": 0}], [{"rank": 0}]]}
    assert failed == {"bad": "it broke"}
    with pytest.raises(UserError, match="it broke"):
        run_rounds(jobs[1:], 1, tmp_path, 60)


def test_several_workers_need_horovodrun(tmp_path, monkeypatch):
    monkeypatch.setattr("ctr_trainer.bench.jobs.shutil.which", lambda name, path: None)
    with pytest.raises(UserError, match="build Horovod with `python -m ctr_trainer.system.installation.build_horovod`"):
        run_rounds([Job("two", 2, (), 4, 2)], 1, tmp_path, 60)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps=1"], "--steps=1 must be at least 2, so that a step is traced"),
        (["--workers=0,1"], "--workers=0,1 must each be at least 1"),
    ],
)
def test_a_mistake_is_named_before_anything_starts(tmp_path, capsys, arguments, message):
    assert cli.main(["bench", "scaling", f"--output={tmp_path / 'out'}", *arguments]) in (1, 2)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_results_of_others_are_refused_before_anything_is_measured(tmp_path, capsys):
    (tmp_path / "scaling.json").write_text("mine")
    assert cli.main(["bench", "scaling", f"--output={tmp_path}"]) == 1
    assert "scaling.json exists already and is not an earlier report" in capsys.readouterr().err
    assert (tmp_path / "scaling.json").read_text() == "mine" and len(list(tmp_path.iterdir())) == 1


def test_runs_of_others_are_never_removed(tmp_path):
    mine = tmp_path / "runs" / "run-0-0" / "notes.txt"
    mine.parent.mkdir(parents=True)
    mine.touch()
    with pytest.raises(UserError, match="failed with status"):
        run_rounds([Job("fails", 1, ("--no_such_flag=1",), 4, 2)], 1, tmp_path, 60)
    assert mine.exists() and [path.name for path in tmp_path.iterdir()] == ["runs"]


@pytest.mark.integration
def test_a_real_run_accounts_for_nine_tenths_of_the_step(tmp_path, capsys):
    # Not smaller: what a call of the session costs in Python is in no phase.
    small = ["--batch_size=1024", "--hidden_units=64", "--steps=12", "--rounds=1", "--sync_steps=4"]
    assert cli.main(["bench", "scaling", "--workers=1,2", f"--output={tmp_path}", *small]) == 0
    text = capsys.readouterr().out
    assert "1 worker  2 workers" in text
    assert text.split("\nmachine:")[0].strip() in (tmp_path / "scaling.txt").read_text()
    found = json.loads((tmp_path / "scaling.json").read_text())
    assert found["machine"]["versions"]["horovod"] and found["failed"] == {}
    one, two = found["sizes"]["1"], found["sizes"]["2"]
    assert one["efficiency"]["values"] == [1.0]
    expected = two["together"]["median"] / (2 * one["together"]["median"])
    assert two["efficiency"]["median"] == pytest.approx(expected)
    for size in (one, two):
        assert 0.9 <= size["accounted"]["median"] <= 1.0001
        for phase in ("embedding_lookup", "input_to_device", "forward", "loss", "backward", "dense_update", "push"):
            assert size["phases_ms"][phase]["median"] > 0, phase
    assert two["phases_ms"]["exchange"]["median"] > 0 and "exchange" not in one["phases_ms"]
    assert two["service_requests"]["median"] > 0 and one["service_requests"] is None
    assert two["network"]["lo"]["sent"]["median"] > 0
    for name in ("scaling.png", "scaling_phases.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.rglob("model"))
