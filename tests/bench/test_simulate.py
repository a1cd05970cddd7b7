"""`bench simulate` from costs in a file, and measured and checked by real jobs."""

import json

import pytest

from ctr_trainer import cli
from ctr_trainer.bench import simulate
from ctr_trainer.messages.errors import UserError
from tests.bench.test_capacity import BASE


def run(tmp_path, *flags):
    assert cli.main(["bench", "simulate", f"--output={tmp_path}", *flags]) == 0
    return json.loads((tmp_path / "simulate.json").read_text())


def test_costs_of_a_file_predict_every_size_and_name_the_bottleneck(tmp_path, capsys):
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps({**BASE.to_dict(), "shard_push_seconds": 1e-6, "cores": 1, "growth": 1.0}))
    found = run(tmp_path, f"--costs={costs}", "--worker_cores=1", "--most_workers=100")["predicted"]
    assert list(found) == ["1", "2", "4", "8", "16", "32", "64", "100"]
    # 1,000 rows a step of 1 us: ten workers keep a shard busy for their 10 ms.
    assert found["8"]["bottleneck"] == "worker" and found["8"]["machines"] == 8
    assert found["100"]["bottleneck"] == "service"
    assert found["100"]["examples_per_sec"] == pytest.approx(1_000_000)
    assert (tmp_path / "simulate.png").stat().st_size > 1000
    assert "first bottleneck" in capsys.readouterr().out


def test_costs_of_another_batch_are_not_checked(tmp_path):
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps(BASE.to_dict()))
    flags = ["bench", "simulate", f"--output={tmp_path}", f"--costs={costs}", "--check", "--batch_size=64"]
    assert cli.main(flags) == 1


@pytest.mark.parametrize("texts", [("fast",), ("-1",), ("1", "2"), ("inf",)])
def test_a_network_is_one_number(texts):
    with pytest.raises(UserError, match="takes one number of Gbit/s"):
        simulate.parse_gbit(texts)


@pytest.mark.integration
def test_costs_are_measured_and_compared_with_jobs_of_one_and_two_workers(tmp_path):
    flags = ("--check", "--workers=1,2", "--rounds=1", "--steps=9", "--trace_steps=3", "--batch_size=64")
    found = run(tmp_path, *flags, "--most_workers=4")
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
