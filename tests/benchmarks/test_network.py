"""The benchmark of a job on several machines with a slow network."""

import json

import network
import pytest
from jobs import Job
from network import NetworkJob

from ctr_trainer.system.messages.errors import UserError
from tests.benchmarks.test_tables import GPU
from tests.hosts import machines
from tests.hosts.machines import Machine

HOSTS = [Machine("n-0", "host-1", "10.213.0.1", 0), Machine("n-1", "host-2", "10.213.0.2", 1)]


def _rank(rate, step_seconds, exchange, received, sent):
    load = {"cpu": 1.0, "network": {"eth0": {"received": received, "sent": sent}, "lo": {"received": 9e9, "sent": 9e9}}}
    seconds = {"forward": 0.001, "exchange": exchange, "dense_update": 0.002, "input_to_device": 0.003}
    phases = {"step_seconds": step_seconds, "seconds": seconds, "accounted": 0.9}
    memory = {"mean": 1.1e9, "max": 1.3e9, "ranks": [0.9e9, 1.3e9]}
    held = {"resident_bytes": memory, "service_resident_bytes": 5e8, "gpu": GPU}
    return {"examples_per_sec": rate, "phases": phases, "load": load, "held": held, "job_seconds": 30.0}


# Two machines, each 100 examples/s: 200 against 80. 1 and 3 Gbit/s come in, 0.8 and 1.6 go out.
ROUNDS = [[_rank(100.0, 0.010, 0.004, 125e6, 100e6), _rank(100.0, 0.020, 0.006, 375e6, 200e6)]]


def _job(tmp_path, gbit, *flags):
    return NetworkJob("j", 2, flags, 10, 5, on=HOSTS, gbit=gbit, programs=tmp_path)


def test_a_column_has_times_for_equal_data_phases_and_gigabits_of_its_interface(tmp_path):
    job = _job(tmp_path, 2.5, "--accumulation_steps=5")
    found = network.column(job, ROUNDS, [[{"examples_per_sec": 80.0}]], 1000)
    assert found["total_seconds"].values == (5.0,) and found["percent"].values == (40.0,)
    assert found["batch_ms"].values == pytest.approx((3.0,))  # 15 ms a step of five batches.
    assert found["received_gbit"].values == pytest.approx((2.0,)) and found["sent_gbit"].values == pytest.approx((1.2,))
    assert found["update_gradients_ms"].values == pytest.approx((7.0,))
    assert found["link_share"].values == pytest.approx((0.8,))
    text = "\n".join(network.table({"2.5 Gbit plain": found}, network._ROWS))
    assert "| percent of one worker's | 40 |" in text and "| receiving, Mbit/s | 2,000.00 |" in text
    assert "| memory of a worker, MB | 1,300 |" in text
    here = network.column(Job("j", 2, (), 10, 5), ROUNDS, None, 1000)
    assert here["percent"] is here["link_share"] is None and here["received_gbit"].values == pytest.approx((72.0,))


@pytest.mark.parametrize("params", [256_000, 1_380_000, 25_600_000])
def test_layers_have_about_the_parameters_asked_for(params):
    (flag,) = network.networks([f"{10 * params}"], 10.0)[f"{10 * params}"]
    first, h, same, last = map(int, flag.rpartition("=")[2].split(","))
    assert h == same and first * h + h * same + same * last == pytest.approx(params, rel=0.01)
    assert network.networks([], 10.0) == {"model": ()}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--gbit=fast"], "argument --gbit"),
        (["--gbit=-1"], "expected Gbit/s"),
        (["--ways=plain,slow"], "there is no way slow: choose from plain, fp16, accumulation, sync"),
    ],
)
def test_a_wrong_flag_is_refused_before_anything_is_made(capsys, flags, message):
    with pytest.raises(SystemExit):
        network.main(flags)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("name", "message"), [("alexnet", "expected resnet50, vgg16"), ("100", "reduce --scale")])
def test_unknown_networks_and_too_few_parameters_are_refused(name, message):
    with pytest.raises(SystemExit, match=message):
        network.networks([name], 1000.0)


def test_hosts_run_one_worker_each_by_horovodrun_on_the_first(tmp_path):
    launcher = _job(tmp_path, 5.0).launcher()
    assert launcher[1:4] == ("netns", "exec", "n-0")
    assert "horovodrun -np 2 -H 10.213.0.1:1,10.213.0.2:1 --gloo --network-interface eth0" in " ".join(launcher)


@pytest.mark.integration
def test_a_real_run_has_a_column_for_each_job(capsys):
    try:
        with machines.machines(2, [0]):
            pass
    except UserError as error:
        pytest.skip(str(error))
    flags = ["--steps=12", "--machines=2", "--gbit=1", "--dense_params=20000", "--ways=accumulation"]
    network.main([*flags, "--", "--batch_size=32"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["failed"] == {}, found["failed"]
    columns, slow = found["columns"]["20000"], "1 Gbit accumulation"
    assert [*columns] == ["one worker", "one machine", slow]
    assert columns["one worker"]["percent"]["values"] == pytest.approx([100.0])
    for name, column in columns.items():
        assert column["total_seconds"]["median"] > 0 and column["batch_ms"]["median"] > 0, name
        assert ("exchange" in column["phases_ms"]) == (name != "one worker"), name
    assert columns[slow]["received_gbit"]["median"] > 0 and 0 < columns[slow]["link_share"]["median"] < 1.1
