"""Machines of namespaces, and what `bench network` makes of its figures."""

import dataclasses
import json
import os
import socket
import subprocess
import sys

import pytest

from ctr_trainer import cli
from ctr_trainer.bench import (
    models,
    namespaces,
    network,
    network_columns,
    network_job,
    reference_networks,
    report,
    scaling,
)
from ctr_trainer.bench.job_flags import NetworkFlags
from ctr_trainer.bench.namespaces import Machine
from ctr_trainer.bench.network_job import NetworkJob
from ctr_trainer.system.messages.errors import UserError


def ranks(*rates):
    return [{"examples_per_sec": rate} for rate in rates]


def test_time_is_for_equal_data_against_one_worker_of_the_same_round():
    # Together 200 against 100: half the time. In the second round 100 + 150 against 50: a fifth.
    runs = {"m alone": [ranks(100), ranks(50)], "m 5 Gbit plain": [ranks(120, 80), ranks(100, 150)]}
    rows = network.summarize("m", runs, ["5 Gbit"], ["plain", "fp16"])
    assert rows["5 Gbit"]["plain"].values == (50.0, 20.0)
    assert rows["5 Gbit"]["fp16"] is None
    assert rows["one machine"]["plain"] is None


def _rank(rate, step_seconds, exchange, received, sent):
    load = {"cpu": 1.0, "network": {"eth0": {"received": received, "sent": sent}, "lo": {"received": 9e9, "sent": 9e9}}}
    phases = {"step_seconds": step_seconds, "seconds": {"forward": 0.001, "exchange": exchange}, "accounted": 0.9}
    phases["seconds"] |= {"dense_update": 0.002, "input_to_device": 0.003}
    memory = {"mean": 1.1e9, "max": 1.3e9, "ranks": [0.9e9, 1.3e9]}
    gpu = {"busy": {"mean": 0.5, "max": 0.5}, "bytes": {"mean": 2e9, "max": 3e9}}
    held = {"resident_bytes": memory, "service_resident_bytes": 5e8, "gpu": gpu}
    return {"examples_per_sec": rate, "phases": phases, "load": load, "held": held, "job_seconds": 30.0}


def _column(**settings):
    # Two machines, each 100 examples/s: 200 against 80. 1 and 3 Gbit/s come in, 0.8 and 1.6 go out.
    rounds = [[_rank(100.0, 0.010, 0.004, 125e6, 100e6), _rank(100.0, 0.020, 0.006, 375e6, 200e6)]]
    return network_columns.measure(rounds, [ranks(80.0)], 1000, "eth0", **settings)


def test_a_column_has_times_phases_and_gigabits_of_the_jobs_interface():
    found = _column(batches=5)
    assert found.total_seconds.values == (5.0,) and found.percent.values == (40.0,)
    assert found.batch_ms.values == pytest.approx((3.0,))  # 15 ms a step of five batches.
    assert found.phases_ms["exchange"].values == pytest.approx((5.0,))
    assert found.received_gbit.values == pytest.approx((2.0,)) and found.sent_gbit.values == pytest.approx((1.2,))
    assert found.job_seconds.values == (30.0,)
    assert found.update_gradients_ms.values == pytest.approx((7.0,)) and found.link_share is None
    assert _column(gbit=2.5).link_share.values == pytest.approx((0.8,))
    assert [each.values for each in found.resident_bytes] == [(0.9e9,), (1.3e9,)]
    assert (found.service_resident_bytes.values, found.gpu_bytes.values) == ((5e8,), (3e9,))
    text = json.loads(json.dumps(report.plain(found)))
    assert [each["median"] for each in text["resident_bytes"]] == [0.9e9, 1.3e9]
    assert text["phases_ms"]["forward"]["median"] == pytest.approx(1.0) and text["percent"]["values"] == [40.0]


def test_the_table_has_a_column_a_job_and_a_row_a_figure():
    lines = network_columns.table({("one worker", ""): _column(), ("5 Gbit", "fp16"): _column(batches=5, gbit=5.0)})
    cells = {line[:42].strip(): line[42:].split() for line in lines}
    assert lines[0].split() == ["one", "worker", "5", "Gbit"] and lines[1].split() == ["fp16"]
    assert cells["total time, s"] == ["5.00", "5.00"] and cells["percent of one worker's"] == ["40", "40"]
    assert cells["time a batch, ms"] == ["15.00", "3.00"] and cells["gradient exchange"] == ["5.00", "5.00"]
    assert cells["memory of each worker, MB"] == ["900-1,300"] * 2
    assert cells["memory of the service, MB"] == ["500"] * 2 and cells["memory of a GPU, MB"] == ["3,000"] * 2
    assert cells["to device"] == ["3.00", "3.00"]
    assert cells["update gradients (exchange and update), ms"] == ["7.00", "7.00"]
    assert cells["receiving"] == ["2.00", "Gb/s"] * 2 and cells["sending"] == ["1.20", "Gb/s"] * 2
    assert cells["used share of the link"] == ["-", "40%"]


@pytest.mark.parametrize(
    ("bytes_per_sec", "shown"),
    [(326e6, "2.61 Gb/s"), (103e6, "824 Mb/s"), (1550.0, "12.4 Kb/s"), (125e6, "1.00 Gb/s"), (0.0, "0.00 Kb/s")],
)
def test_a_speed_is_shown_in_the_unit_that_fits(bytes_per_sec, shown):
    rounds = [[_rank(100.0, 0.010, 0.004, bytes_per_sec, bytes_per_sec)]]
    lines = network_columns.table({("one worker", ""): network_columns.measure(rounds, None, 1000, "eth0")})
    assert [line.split("  ")[-1].strip() for line in lines if line.startswith("receiving")] == [shown]


def test_without_one_worker_there_is_no_percent():
    rounds = [[_rank(100.0, 0.010, 0.004, 0.0, 0.0)]]
    found = network_columns.measure(rounds, None, 1000, "lo")
    assert found.percent is None and found.received_gbit.values == (72.0,)


def test_the_convolutions_have_the_parameters_of_resnet50_over_the_scale():
    found = reference_networks.networks(("conv", "1000000"), 10.0)
    model, channels = found["conv"]
    assert model == f"--model={models.__name__}:model_fn"
    assert reference_networks.parameters(int(channels.rpartition("=")[2])) == pytest.approx(2_560_000, rel=0.05)
    assert found["1000000"] == (f"--hidden_units={','.join(map(str, reference_networks.hidden_units(100_000)))}",)
    assert reference_networks.networks((), 10.0) == {"model": ()}


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ((), ([], 1.0)),
        (("resnet50", "100"), (["resnet50", "100"], 1.0)),
        (("conv/2.5", "vgg16/2.5"), (["conv", "vgg16"], 2.5)),
    ],
)
def test_one_divisor_stands_behind_the_names_of_networks(texts, expected):
    assert reference_networks.without_divisor(texts) == expected


@pytest.mark.parametrize(
    ("names", "said"),
    [((), "deepfm"), (("conv",), "conv"), (("resnet50", "conv", "vgg16"), "deepfm (resnet50, vgg16), conv")],
)
def test_what_is_trained_is_named_by_its_networks(names, said):
    assert reference_networks.describe(names, "deepfm") == said


@pytest.mark.parametrize("params", [256_000, 1_380_000, 25_600_000])
def test_a_tower_has_about_the_parameters_asked_for(params):
    first, h, same, last = reference_networks.hidden_units(params)
    assert h == same and first * h + h * same + same * last == pytest.approx(params, rel=0.01)


@pytest.mark.parametrize(
    "flags, message",
    [
        ({"gbit": ("fast",)}, "--gbit=fast: expected Gbit/s"),
        ({"gbit": ("-1",)}, "--gbit=-1: expected Gbit/s"),
        ({"ways": ("plain", "slow")}, "--ways=plain,slow: unknown slow, expected plain, fp16, accumulation"),
        ({"dense_params": ("alexnet",)}, "--dense_params=alexnet: expected resnet50, vgg16, conv or a number"),
        ({"dense_params": ("100/1000",)}, "too few for hidden layers; reduce the divisor"),
        ({"dense_params": ("conv/1e6",)}, "too few for convolutions; reduce the divisor"),
        ({"dense_params": ("conv/0.5",)}, "--dense_params=conv/0.5: expected the same number of at least 1"),
        ({"dense_params": ("resnet50/9", "conv")}, "=resnet50/9,conv: expected the same number of at least 1"),
        ({"dense_params": ("conv/all",)}, "=conv/all: expected the same number of at least 1 after each slash"),
    ],
)
def test_wrong_flags_are_refused_before_anything_is_made(flags, message):
    with pytest.raises(UserError, match=message):
        network.run(None, None, dataclasses.replace(NetworkFlags(), **flags))


@pytest.mark.parametrize(
    ("module", "flags", "rounds", "steps"),
    [(network, [], 1, 100), (scaling, [], 3, 200), (network, ["--rounds=2", "--steps=30"], 2, 30)],
)
def test_by_default_network_is_the_shorter_one(tmp_path, monkeypatch, module, flags, rounds, steps):
    ran = []
    monkeypatch.setattr(module, "run", lambda bench, *others: ran.append((bench.rounds, bench.steps)))
    name = module.__name__.rpartition(".")[2]
    assert cli.main(["bench", name, f"--output={tmp_path}", *flags]) == 0
    assert ran == [(rounds, steps)]


def test_a_missing_program_is_named_with_its_package():
    tools = {"ip": "iproute2", "no-such-tool": "no-such-package"}
    with pytest.raises(UserError, match="needs no-such-tool.*apt-get install no-such-package"):
        namespaces.require_privileges(tools)


def test_who_is_not_root_is_refused():
    code = (
        "import os; from ctr_trainer.bench import namespaces\n"
        "from ctr_trainer.system.messages.errors import UserError\n"
        "if os.geteuid() == 0: os.setuid(65534)\n"
        "try: namespaces.require_privileges({})\n"
        "except UserError as error: print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert "`bench network` creates network namespaces, for which it must run as root" in ran.stdout


def test_hosts_run_one_worker_each_by_horovodrun_on_the_first(tmp_path):
    found = [Machine("n-0", "host-1", "10.213.0.1", 0), Machine("n-1", "host-2", "10.213.0.2", 1)]
    launcher = NetworkJob("j", 2, (), 10, 5, machines=found, gbit=5.0, programs=tmp_path).launcher()
    assert launcher[1:6] == ("netns", "exec", "n-0", launcher[4], "-c")
    assert "horovodrun -np 2 -H 10.213.0.1:1,10.213.0.2:1 --gloo --network-interface eth0" in " ".join(launcher)


@pytest.fixture(scope="module")
def can_make_machines():
    """Skips where this machine cannot make others: what is refused then, and how, the tests above tell."""
    try:
        namespaces.require_privileges({**namespaces.PACKAGES, **network_job.SSH_PACKAGES})
        with namespaces.machines(2, [0]):
            pass
    except UserError as error:
        pytest.skip(str(error))


def _namespaces():
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=60, check=True).stdout
    return {line.split()[0] for line in listed.splitlines()}


def test_nothing_is_left_where_the_kernel_refuses(can_make_machines):
    taken = f"ctr-bench-{os.getpid()}-1"
    subprocess.run(["ip", "netns", "add", taken], check=True, timeout=60)
    with (
        pytest.raises(UserError, match=f"does not let .*ip netns add {taken}.*File exists"),
        namespaces.machines(3, [0]),
    ):
        raise AssertionError("not reached")
    assert not any(name.startswith(f"ctr-bench-{os.getpid()}-") for name in _namespaces())


def test_machines_reach_each_other_by_ssh_at_the_given_speed(can_make_machines, tmp_path):
    cores = sorted(os.sched_getaffinity(0))
    with namespaces.machines(2, cores) as found, network_job.ssh_daemons(found, tmp_path) as programs:
        login = [programs / "ssh", found[1].name, "ip -4 -brief address; hostname; taskset -cp $$"]
        shown = subprocess.run(found[0].command(login), capture_output=True, text=True, timeout=60, check=True).stdout
        assert found[1].address in shown and "\nhost-2\n" in shown
        assert shown.rstrip().endswith(f": {found[1].core}")
        namespaces.limit(found, 0.1)
        shape = subprocess.run(
            found[0].command(["tc", "qdisc", "show", "dev", "eth0"]), capture_output=True, text=True, timeout=60
        )
        assert "tbf" in shape.stdout and "rate 100Mbit" in shape.stdout
        listen = (
            "import socket; s = socket.create_server(('', 9000)); print(1, flush=True); print(s.accept()[0].recv(9))"
        )
        with subprocess.Popen(found[1].command([sys.executable, "-c", listen]), stdout=subprocess.PIPE) as server:
            server.stdout.readline()
            send = f"import socket; socket.create_connection(('{found[1].address}', 9000)).sendall(b'hello')"
            subprocess.run(found[0].command([sys.executable, "-c", send]), timeout=60, check=True)
            assert server.stdout.readline() == b"b'hello'\n"
        names = [machine.namespace for machine in found]
    assert not _namespaces() & set(names)
    assert {name for _, name in socket.if_nameindex()} & {"bridge", "port0", "port1"} == set()


def test_the_directory_of_the_daemons_stays_while_another_bench_uses_it(tmp_path):
    empty = tmp_path / "sshd"
    with network_job.directory_in_use(empty):
        assert empty.is_dir()
    assert not empty.exists()
    first, second = network_job.directory_in_use(empty), network_job.directory_in_use(empty)
    with first:
        second.__enter__()
    assert empty.is_dir()
    second.__exit__(None, None, None)
    with network_job.directory_in_use(empty):
        pass
    assert empty.is_dir()  # It was there before.


def test_what_stands_on_standard_input_stays_for_others(can_make_machines, tmp_path):
    typed, before = tmp_path / "typed", os.dup(0)
    typed.write_text("kept")
    (tmp_path / "keys").mkdir()
    try:
        with open(typed) as file:
            os.dup2(file.fileno(), 0)
        with namespaces.machines(2, [0]) as found, network_job.ssh_daemons(found, tmp_path / "keys"):
            assert os.read(0, 10) == b"kept"
    finally:
        os.dup2(before, 0)
        os.close(before)


def test_a_namespace_of_a_process_that_is_gone_is_removed(can_make_machines):
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    gone, *others = f"ctr-bench-{ended.pid}-0", f"ctr-bench-{os.getpid()}-0", f"somebody-else-{ended.pid}-0"
    try:
        for name in (gone, *others):
            subprocess.run(["ip", "netns", "add", name], check=True, timeout=60)
        assert gone in namespaces.remove_leftovers()
        assert gone not in _namespaces() and set(others) <= _namespaces()
    finally:
        for name in others:
            subprocess.run(["ip", "netns", "delete", name], check=True, timeout=60)


@pytest.mark.integration
def test_a_real_run_has_a_column_for_each_job_the_search_among_them(can_make_machines, tmp_path, capsys):
    sizes = ["--batch_size=32", "--steps=12", "--rounds=1", "--machines=2", "--gbit=1"]
    more = ["--dense_params=conv/20000", "--ways=accumulation,autotune"]
    assert cli.main(["bench", "network", f"--output={tmp_path}", *sizes, *more]) == 0
    shown = capsys.readouterr().out
    found = json.loads((tmp_path / "network.json").read_text())
    assert found["failed"] == {}, found["failed"]
    assert "\nconv on W1" in f"\n{shown}" and found["experiment"].startswith("conv on W1")
    columns = found["columns"]["conv"]
    ways = ["accumulation", "searching", "tuned"]
    assert list(columns) == ["one worker", "one machine", *(f"1 Gbit {way}" for way in ways)]
    assert columns["one worker"]["percent"]["values"] == pytest.approx([100.0])
    for name, column in columns.items():
        assert len(column["resident_bytes"]) == (1 if name == "one worker" else 2), name
        assert all(each["median"] > 1e8 for each in column["resident_bytes"]), name
        assert column["total_seconds"]["median"] > 0 and column["batch_ms"]["median"] > 0, name
        assert ("exchange" in column["phases_ms"]) == (name != "one worker"), name
        for phase in ("input_to_device", "forward", "loss", "backward", "dense_update"):
            assert column["phases_ms"][phase]["median"] > 0, (name, phase)
    for way in ways:
        assert columns[f"1 Gbit {way}"]["received_gbit"]["median"] > 0, way
        assert 0 < columns[f"1 Gbit {way}"]["link_share"]["median"] < 1.1, way
        percent = found["time_percent"]["conv"]["1 Gbit"][way]
        assert columns[f"1 Gbit {way}"]["percent"] == percent
    assert found["autotune"]["conv 1 Gbit"]["score"] > 0
    assert "conv, 1 Gbit: Horovod was fastest with cycle time" in shown and "gradient exchange" in shown
