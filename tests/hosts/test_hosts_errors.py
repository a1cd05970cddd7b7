"""What two hosts get wrong: the job ends by itself, and what is said last names the host and what to do."""

import contextlib
import re
import subprocess

import pytest

from tests import small
from tests.hosts import machines as simulated
from tests.parallel import launch

pytestmark = [pytest.mark.integration, pytest.mark.slow]
RUN = "horovodrun -np 2 -H host-1:1,host-2:1 --network-interface eth0"
NOBODY = "02:00:00:00:00:01"


@pytest.fixture(scope="module")
def train(hosts):
    """The flags of a training, but for its service."""
    data = small.make(hosts.shared / "small", rows=200)
    return f"--train_data={data} --model_dir={hosts.shared / 'model'} --batch_size=16 --hidden_units=8 --recipe=none"


def _said_last(hosts, command, **variables):
    """Returns the rank and the last message of a job, which must be its only error."""
    status, output = hosts.run(command, **variables)
    assert status != 0, output
    rank, line = launch.last_line(output)
    assert line.startswith("error: ") and output.count("error: ") == 1 and "Traceback" not in output, output
    return rank, line.removeprefix("error: ")


def _inside(hosts, host, command):
    subprocess.run(hosts.machines[host].command(command.split()), check=True, timeout=60)


@contextlib.contextmanager
def _found_by(hosts, host, name, address):
    """Within it, a host finds a name at another address."""
    file = simulated._ETC / hosts.machines[host].namespace / "hosts"
    right = file.read_text()
    file.write_text(re.sub(rf"^\S+ {name}$", f"{address} {name}", right, flags=re.MULTILINE))
    try:
        yield
    finally:
        file.write_text(right)


def test_a_shard_whose_port_drops_what_one_host_sends(hosts, train, port):
    address = "10.214.0.1"  # Of the first host; the other one sends what is for it to a card that nobody has.
    _inside(hosts, 0, f"ip address add {address}/32 dev lo")
    _inside(hosts, 1, f"ip route add {address}/32 dev eth0")
    _inside(hosts, 1, f"ip neigh replace {address} lladdr {NOBODY} dev eth0 nud permanent")
    security = f"--token_file={hosts.shared / 'token'}"
    rank, said = _said_last(hosts, f"{RUN} ./run.sh {train} --embedding_service={address}:{port} {security}")
    assert rank == 1
    assert f"{address} sends no answer to host-2, as if a firewall drops the packets: open its port {port}" in said


def test_a_shard_whose_name_leads_to_loopback_on_one_host(hosts, train, port):
    security = f"--token_file={hosts.shared / 'token'}"
    with _found_by(hosts, 0, "host-1", "127.0.1.1"):  # As Debian has it.
        rank, said = _said_last(hosts, f"{RUN} ./run.sh {train} --embedding_service=host-1:{port} {security}")
    assert rank == 0
    assert said.startswith(f"embedding service host-1:{port}: on host-1 the name host-1 leads to 127.0.1.1, which is")


def test_a_host_of_horovodrun_whose_name_leads_to_loopback(hosts, train):
    with _found_by(hosts, 0, "host-2", "127.0.1.1"):
        _, said = _said_last(hosts, f"{RUN} ./run.sh {train}")
    assert said.startswith("horovodrun has started the workers of host-1 and of host-2 all on host-1")
    assert "Correct the address of host-2 in /etc/hosts of host-1" in said


def test_different_flags_on_two_hosts(hosts, train):
    for host, steps in (("host-1", 30), ("host-2", 10)):
        (hosts.shared / f"{host}.flags").write_text(f"--sync_steps={steps}\n--threads={steps}\n")
    own = f"sh -c 'exec ./run.sh {train} --flagfile={hosts.shared}/$HOROVOD_HOSTNAME.flags'"
    _, said = _said_last(hosts, f"{RUN} {own}")
    assert said.startswith(
        "the ranks of this job have different settings: sync_steps is 30 on host-1 (rank 0), 10 on host-2 (rank 1). "
        "Use the same command and files for all ranks"
    )


def test_a_host_that_does_not_reach_horovodrun(hosts, train):
    address = "10.213.0.101"  # The last one of its interface is what horovodrun tells the workers.
    _inside(hosts, 0, f"ip address add {address}/24 dev eth0")
    _inside(hosts, 1, f"ip neigh replace {address} lladdr {NOBODY} dev eth0 nud permanent")
    try:
        status, output = hosts.run(f"{RUN} ./run.sh {train}")
    finally:
        _inside(hosts, 0, f"ip address delete {address}/24 dev eth0")
    assert status != 0
    at = rf"horovodrun at {address}:\d+"
    assert re.search(rf"error: {at} cannot be reached: {address} sends no answer to host-2, as if a", output), output
    assert re.match(rf"error: nothing was heard of rank 1, whose host may not reach {at}", launch.last_line(output)[1])
