"""Hosts that answer, and those that stop."""

import socket

import pytest

from ctr_trainer.launch import hosts as hosts_module
from ctr_trainer.launch.hosts import Host, Hosts, ReachableHosts
from ctr_trainer.system.processes import reach
from tests.parallel import launch


@pytest.fixture
def silent(monkeypatch):
    """The set of the names of hosts that do not answer; no name is this host."""
    names = {"c"}
    monkeypatch.setattr(reach, "is_here", lambda name: False)
    monkeypatch.setattr(reach, "is_silent", lambda address: address.partition(":")[0] in names)
    return names


def test_a_host_that_stops_answering_is_left_out_until_it_answers_again(silent):
    a, b, c = (Host(name, 1) for name in "abc")
    hosts = ReachableHosts(Hosts([a, b, c]), 0, period=0.1)
    try:
        launch.wait_until(lambda: {"a", "b"} <= hosts._answered, "the first answers", 20)
        assert hosts.now() == (a, b, c)  # One that has never answered may be reached another way.
        silent.add("b")
        launch.wait_until(lambda: hosts.now() == (a, c), "b's silence", 20)
        launch.wait_until(lambda: hosts.silent_for("b") > 0.1, "time", 20)
        assert hosts.silent_for("a") == 0
        silent.remove("b")
        launch.wait_until(lambda: hosts.now() == (a, b, c), "b's return", 20)
        assert hosts.silent_for("b") == 0
    finally:
        hosts.close()


class _Counted(Hosts):
    asked = 0

    def now(self):
        self.asked += 1
        return super().now()


def test_a_host_that_answers_is_asked_again_after_the_period_only(monkeypatch):
    """sshd refuses a host that connects more than once a second, see PerSourcePenalties in sshd_config(5)."""
    monkeypatch.setattr(reach, "is_here", lambda name: False)
    monkeypatch.setattr(hosts_module, "_SILENT_PERIOD_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as server:
        counted = _Counted([Host("127.0.0.1", 1)])
        hosts = ReachableHosts(counted, server.getsockname()[1], period=1e9)
        try:
            server.settimeout(20)
            server.accept()[0].close()
            launch.wait_until(lambda: counted.asked > 30, "thirty looks", 20)
            server.settimeout(0)
            with pytest.raises(BlockingIOError):
                server.accept()
        finally:
            hosts.close()
