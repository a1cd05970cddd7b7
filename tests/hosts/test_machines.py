"""Machines of network namespaces: what they need, how fast they are, and that nothing is left of them."""

import os
import socket
import subprocess
import sys

import pytest

from ctr_trainer.system.messages.errors import UserError
from tests.hosts import machines


def test_a_missing_program_is_named_with_its_package():
    tools = {"ip": "iproute2", "no-such-tool": "no-such-package"}
    with pytest.raises(UserError, match="need .*no-such-tool.*apt-get install .*no-such-package"):
        machines.require_privileges(tools)


def test_a_user_who_is_not_root_is_refused():
    code = (
        "import os; from tests.hosts import machines\n"
        "from ctr_trainer.system.messages.errors import UserError\n"
        "if os.geteuid() == 0: os.setuid(65534)\n"
        "try: machines.require_privileges({})\n"
        "except UserError as error: print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert "simulated machines are network namespaces, which only root can create" in ran.stdout


@pytest.fixture(scope="module")
def can_make_machines():
    """Skips where this machine cannot make others; the tests above check how it is refused then."""
    try:
        with machines.machines(2, [0]):
            pass
    except UserError as error:
        pytest.skip(str(error))


def _namespaces():
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=60, check=True).stdout
    return {line.split()[0] for line in listed.splitlines()}


def test_machines_reach_each_other_by_ssh_at_the_speed_asked_for(can_make_machines, tmp_path):
    cores = sorted(os.sched_getaffinity(0))
    with machines.machines(2, cores) as found, machines.ssh_daemons(found, tmp_path) as programs:
        login = [programs / "ssh", found[1].name, "ip -4 -brief address; hostname; taskset -cp $$"]
        shown = subprocess.run(found[0].command(login), capture_output=True, text=True, timeout=60, check=True).stdout
        assert found[1].address in shown and "\nhost-2\n" in shown
        assert shown.rstrip().endswith(f": {found[1].core}")
        machines.limit(found, 0.1)
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


def test_a_namespace_of_a_process_that_is_gone_is_removed(can_make_machines):
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    gone, *others = f"ctr-hosts-{ended.pid}-0", f"ctr-hosts-{os.getpid()}-0", f"somebody-else-{ended.pid}-0"
    try:
        for name in (gone, *others):
            subprocess.run(["ip", "netns", "add", name], check=True, timeout=60)
        assert gone in machines.remove_leftovers()
        assert gone not in _namespaces() and set(others) <= _namespaces()
    finally:
        for name in others:
            subprocess.run(["ip", "netns", "delete", name], check=True, timeout=60)
