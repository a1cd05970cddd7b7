"""`bench simulate` from costs in a file, and measured and checked by real jobs."""

import json
import os

import pytest

from ctr_trainer import cli
from ctr_trainer.bench import costs as costs_module
from ctr_trainer.bench import service_costs, simulate
from ctr_trainer.system.messages.errors import UserError
from tests.bench.test_capacity import BASE


def run(tmp_path, *flags):
    assert cli.main(["bench", "simulate", f"--output={tmp_path}", *flags]) == 0
    return json.loads((tmp_path / "simulate.json").read_text())


def test_costs_of_a_file_predict_every_size_and_name_the_bottleneck(tmp_path, capsys):
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps({**BASE.to_dict(), "shard_push_seconds": 1e-6, "cores": 1, "growth": 1.0}))
    found = run(tmp_path, f"--costs={costs}", "--worker_cores=1")["predicted"]
    assert list(found) == ["1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1000"]
    # 1,000 rows a step of 1 us: ten workers keep a shard busy for their 10 ms.
    assert found["8"]["bottleneck"] == "worker" and found["8"]["machines"] == 8
    assert found["128"]["bottleneck"] == "service"
    assert found["128"]["examples_per_sec"] == pytest.approx(1_000_000)
    assert (tmp_path / "simulate.png").stat().st_size > 1000
    assert "first bottleneck" in capsys.readouterr().out


def test_costs_of_another_batch_are_not_checked(tmp_path, capsys):
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps(BASE.to_dict()))
    flags = ["bench", "simulate", f"--output={tmp_path}", f"--costs={costs}", "--check", "--batch_size=64"]
    assert cli.main(flags) == 1
    expected = f"--costs={costs} were measured with {BASE.batch_size} examples a step, but --check would run 64"
    assert expected in capsys.readouterr().err and BASE.batch_size != 64
    assert not (tmp_path / "simulate.json").exists()
    assert cli.main([*flags[:-2], "--batch_size=64"]) == 0  # A prediction alone needs no job.


@pytest.mark.parametrize("texts", [("fast",), ("-1",), ("1", "2"), ("inf",)])
def test_a_network_is_one_number(texts):
    with pytest.raises(UserError, match="takes one number of Gbit/s"):
        simulate.parse_gbit(texts)


def test_the_costs_of_two_cores_are_those_of_one_worker_beside_those_of_two_and_of_four(tmp_path, monkeypatch):
    def run(job, directory, timeout):
        """A step takes 0.1 s alone, 0.1 and 0.14 s on two cores at once, and 2.5 times that where two share each."""
        step = 0.14 if job.name.startswith("core1") else 0.10
        step *= 2.5 if job.name.endswith(("-0", "-1")) else 1.0
        return [{"phases": {"step_seconds": step, "step_deviation": 0.01, "seconds": {"forward": 0.03, "push": 0.02}}}]

    def probe(flags, workers, directory, timeout):
        small, dense = (0.002, 0.102) if workers == 2 else (0.012, 0.512)
        memory = dict(memory_small_seconds=small / 2, memory_dense_seconds=small / 2 + 0.05, dense_cpu_seconds=0.04)
        sizes = dict(dims=(16, 1), rows=100, growth=0.5, row_bytes=136, dense_bytes=1000, state_bytes=2000)
        return {"workers": workers, "small_seconds": small, "dense_seconds": dense, **memory, **sizes}

    names = ("push_seconds", "request_seconds", "shard_push_seconds", "shard_pull_seconds", "shard_request_seconds")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(costs_module.Job, "run", run)
    monkeypatch.setattr(costs_module, "_probe", probe)
    monkeypatch.setattr(service_costs, "lock_seconds", lambda dims, optimizer, rows: 0.004)
    monkeypatch.setattr(service_costs, "measure", lambda *arguments: dict.fromkeys(names, 0.001))
    costs = costs_module.measure_costs((), 64, "adagrad", 9, 3, tmp_path, 60)
    assert (costs.step_seconds, costs.host_seconds) == pytest.approx((0.03, 0.07))
    assert costs.crowding == pytest.approx(0.12 / 0.10)
    assert costs.sharing == pytest.approx(2.5 / 2)
    assert costs.hop_seconds == pytest.approx(0.001)
    assert costs.crowded_hop_seconds == pytest.approx(0.012 / 6)
    assert costs.link_bytes_per_sec == pytest.approx(10_000)
    assert (costs.meeting_seconds, costs.crowded_meeting_seconds) == pytest.approx((0.001, 0.006))
    assert costs.memory_bytes_per_sec == pytest.approx(20_000)


@pytest.mark.integration
def test_costs_are_measured_and_compared_with_jobs_of_one_and_two_workers(tmp_path, monkeypatch):
    # As if of one core: each further one has three workers more started. The test above has two.
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    flags = ("--check", "--workers=1,2", "--rounds=1", "--steps=9", "--batch_size=64")
    found = run(tmp_path, *flags)
    costs = found["costs"]
    # The tower of W1: 26 * 16 + 13 inputs, 256, 128, 64 units and a logit, with biases; Adagrad keeps as much again.
    floats = 430 * 256 + 257 * 128 + 129 * 64 + 65
    assert costs["dense_bytes"] >= 4 * floats and costs["state_bytes"] >= 2 * 4 * floats
    assert costs["row_bytes"] == 4 * 2 * 17
    assert 26 <= costs["rows"] <= 26 * 64 and 0 < costs["growth"] < 1
    assert costs["crowding"] >= 1 and costs["sharing"] >= 1 and 0 < costs["lock_seconds"] < costs["host_seconds"]
    assert [each["workers"] for each in found["checked"]] == [1, 2]
    for each in found["checked"]:
        error = 100 * (each["predicted"] / each["measured"]["median"] - 1)
        assert each["error_percent"] == pytest.approx(error)
