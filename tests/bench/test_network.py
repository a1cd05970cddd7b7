"""Machines of namespaces, and what `bench network` makes of its figures."""

import dataclasses
import os
import socket
import subprocess
import sys

import pytest

from ctr_trainer.bench import namespaces, network, ssh
from ctr_trainer.bench.namespaces import Machine
from ctr_trainer.errors import UserError
from ctr_trainer.flags import NetworkFlags


def ranks(*rates):
    return [{"examples_per_sec": rate} for rate in rates]


def test_time_is_for_equal_data_against_one_worker_of_the_same_round():
    # Together 200 against 100: half the time. In the second round 100 + 150 against 50: a fifth.
    runs = {"m alone": [ranks(100), ranks(50)], "m 5 Gbit plain": [ranks(120, 80), ranks(100, 150)]}
    rows = network.summarize("m", runs, [5.0], ["plain", "fp16"])
    assert rows["5 Gbit"]["plain"].values == (50.0, 20.0)
    assert rows["5 Gbit"]["fp16"] is None
    assert rows["one machine"]["plain"] is None


@pytest.mark.parametrize("params", [256_000, 1_380_000, 25_600_000])
def test_a_tower_has_about_the_parameters_asked_for(params):
    first, h, same, last = network.hidden_units(params)
    assert h == same and first * h + h * same + same * last == pytest.approx(params, rel=0.01)


@pytest.mark.parametrize(
    "flags, message",
    [
        ({"gbit": ("fast",)}, "--gbit=fast: expected Gbit/s"),
        ({"gbit": ("-1",)}, "--gbit=-1: expected Gbit/s"),
        ({"ways": ("plain", "slow")}, "there is no slow, only plain, fp16"),
        ({"dense_params": ("alexnet",)}, "--dense_params=alexnet: expected resnet50, vgg16 or a number"),
        ({"dense_params": ("100",), "scale": 1000.0}, "too few for a tower; lower --scale"),
    ],
)
def test_wrong_flags_are_refused_before_anything_is_made(flags, message):
    with pytest.raises(UserError, match=message):
        network.run(None, None, dataclasses.replace(NetworkFlags(), **flags))


def test_a_missing_program_is_named_with_its_package():
    tools = {"ip": "iproute2", "no-such-tool": "no-such-package"}
    with pytest.raises(UserError, match="needs no-such-tool.*apt-get install no-such-package"):
        namespaces.require_privileges(tools)


def test_who_is_not_root_is_refused(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UserError, match="only root may"):
        namespaces.require_privileges({})


def test_hosts_run_one_worker_each_by_horovodrun_on_the_first(tmp_path):
    found = [Machine("n-0", "10.213.0.1", 0), Machine("n-1", "10.213.0.2", 1)]
    job = network.Job("j", 2, (), 10, 5)
    launcher = network.NetworkJob(job, found, 5.0, tmp_path).launcher
    assert launcher[1:6] == ("netns", "exec", "n-0", launcher[4], "-c")
    assert "horovodrun -np 2 -H 10.213.0.1:1,10.213.0.2:1 --gloo --network-interface eth0" in " ".join(launcher)


def test_nothing_is_left_where_the_kernel_refuses(monkeypatch):
    ran = []

    def run(command, check=True):
        ran.append(command)
        if check and command[:3] == ["ip", "netns", "add"] and command[3].endswith("-1"):
            raise UserError("no")
        return ""

    monkeypatch.setattr(namespaces, "_run", run)
    monkeypatch.setattr(namespaces, "require_privileges", lambda: None)
    with pytest.raises(UserError, match="no"), namespaces.machines(3, [0]):
        raise AssertionError("not reached")
    deleted = [command[3].rpartition("-")[2] for command in ran if command[:3] == ["ip", "netns", "delete"]]
    assert deleted == ["0", "1", "2", "switch"]


def _can_make_machines():
    try:
        namespaces.require_privileges({**namespaces.PACKAGES, **ssh.PACKAGES})
        with namespaces.machines(2, [0]):
            return True
    except UserError:
        return False


def test_machines_reach_each_other_by_ssh_at_the_speed_asked_for_and_leave_nothing(tmp_path):
    if not _can_make_machines():
        return  # What is refused then, and how, the tests above tell.
    cores = sorted(os.sched_getaffinity(0))
    with namespaces.machines(2, cores) as found, ssh.daemons(found, tmp_path) as programs:
        login = [programs / "ssh", found[1].address, "ip -4 -brief address; taskset -cp $$"]
        shown = subprocess.run(found[0].command(login), capture_output=True, text=True, timeout=60, check=True).stdout
        assert found[1].address in shown and shown.rstrip().endswith(f": {found[1].core}")
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
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=60).stdout
    assert not any(name in left for name in names)
    assert {name for _, name in socket.if_nameindex()} & {"bridge", "port0", "port1"} == set()


def test_a_namespace_of_a_process_that_is_gone_is_removed(monkeypatch):
    removed = []
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    listed = f"ctr-bench-{ended.pid}-0 (id: 1)\nctr-bench-{os.getpid()}-0\nsomebody-else-{ended.pid}-0\n"
    monkeypatch.setattr(namespaces, "_run", lambda command, check=True: listed)
    monkeypatch.setattr(namespaces, "_remove", removed.append)
    assert namespaces.remove_leftovers() == removed == [f"ctr-bench-{ended.pid}-0"]
