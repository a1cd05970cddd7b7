"""Which hosts there are, and which of them answer."""

import collections
import re

import pytest

from ctr_trainer.launch import hosts as hosts_module
from ctr_trainer.launch.hosts import Host, Hosts, filled, host_of, open_hosts, parse_lines
from ctr_trainer.launch.supervisor import Supervisor
from ctr_trainer.settings.command_flags import LaunchFlags
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import reach
from tests.parallel import launch

A, B = Host("a", 4), Host("b", 4)


def test_a_discovery_script_prints_hosts_as_horovod_has_it():
    assert parse_lines(["a:4", "", "b", "b"], "S") == (A, Host("b", 1))
    assert parse_lines([], "S") == ()
    for wrong in ("a:0", "a b", "a:x", ":4", "a:4:4"):
        with pytest.raises(UserError, match=f"S: '{wrong}' is not a host: expected NAME:SLOTS, such as host-1:4"):
            parse_lines([wrong], "S")


def test_hosts_are_those_of_a_list_or_a_file_or_this_one_named_once(tmp_path):
    (tmp_path / "hosts").write_text("a slots=4\n\nb slots=4\n")
    (tmp_path / "wrong").write_text("a slots=4\nb\n")
    assert open_hosts(LaunchFlags(np=8, hosts="a:4,b:4")).now() == (A, B)
    assert open_hosts(LaunchFlags(np=8, hostfile=str(tmp_path / "hosts"))).now() == (A, B)
    assert open_hosts(LaunchFlags(np=2, max_np=3)).now() == (Host("localhost", 3),)
    for flags, problem in (
        (LaunchFlags(np=9, hosts="a:4,b:4"), "-np 9 workers need as many slots, but a:4,b:4 has fewer"),
        (LaunchFlags(hosts="a:4,a:4"), "a:4,a:4: a host is named twice"),
        (LaunchFlags(hosts="a"), "-H a: 'a' is not a host"),
        (LaunchFlags(hostfile=str(tmp_path / "wrong")), "wrong, line 2: 'b': expected NAME slots=NUMBER"),
        (LaunchFlags(hostfile=str(tmp_path / "none")), "none: No such file"),
    ):
        with pytest.raises(UserError, match=re.escape(problem)):
            open_hosts(flags)
    with pytest.raises(UserError, match="--min-np=3, -np 2, --max-np=2: expected these in ascending order"):
        LaunchFlags(np=2, min_np=3)
    with pytest.raises(UserError, match="--hosts and --hostfile exclude each other"):
        LaunchFlags(hosts="a:1", hostfile="b")


def test_a_script_is_asked_again_and_its_failures_change_nothing(tmp_path, caplog):
    listed = tmp_path / "listed"
    listed.write_text("a:4\n")
    with open_hosts(LaunchFlags(host_discovery_script=f"cat {listed}", ssh_port=9)) as hosts:
        assert hosts.now() == (A,)
        listed.write_text("a:4\nb:4\n")
        launch.wait_until(lambda: hosts.now() == (A, B), "the script's second answer", 20)
        listed.unlink()
        launch.wait_until(lambda: "the hosts stay a:4,b:4" in caplog.text, "the warning", 20)
        assert hosts.now() == (A, B)
    with pytest.raises(UserError, match="--host_discovery_script=exit 3 failed with status 3"):
        open_hosts(LaunchFlags(host_discovery_script="exit 3"))


def test_the_first_hosts_are_filled_first_and_ranks_go_by_hosts():
    assert filled((A, B), 6) == (A, Host("b", 2))
    assert filled((A, B), 3) == (Host("a", 3),)
    assert filled((A, B), 9) == (A, B)
    assert filled((), 2) == ()
    assert [host_of(filled((A, B), 6), rank) for rank in range(6)] == ["a"] * 4 + ["b"] * 2


def test_a_host_that_has_failed_twice_is_used_only_if_the_others_are_too_few():
    supervisor = Supervisor(LaunchFlags(np=8, min_np=4, hosts="a:4,b:4"), Hosts([A, B]), [], [], {}, "", 0.0)
    supervisor._failures["a"] = 1
    assert supervisor._choose(4) == (A, B)
    supervisor._failures["a"] = 2
    assert supervisor._choose(4) == (B,)
    assert supervisor._choose(8) == (A, B)


def test_a_host_that_stops_answering_is_left_out_until_it_answers_again(monkeypatch):
    """sshd refuses a host that connects more than once a second, see PerSourcePenalties in sshd_config(5)."""
    silent, asked = {"c"}, collections.Counter()

    def is_silent(address):
        asked[address] += 1
        return address.partition(":")[0] in silent

    monkeypatch.setattr(reach, "is_here", lambda name: False)
    monkeypatch.setattr(reach, "is_silent", is_silent)
    monkeypatch.setattr(hosts_module, "_SILENT_PERIOD_SECONDS", 0.01)
    a, b, c = (Host(name, 1) for name in "abc")
    with Hosts([a, b, c], period=1e9) as hosts:
        launch.wait_until(lambda: {"a", "b"} <= hosts._answered, "the first answers", 20)
        assert hosts.now() == (a, b, c)  # One that has never answered may be reached another way.
        silent.add("b")
        hosts._due["b"] = 0.0
        launch.wait_until(lambda: hosts.now() == (a, c), "b's silence", 20)
        launch.wait_until(lambda: asked["b:22"] > 30 and hosts.silent_for("b") > 0.1, "further questions", 20)
        assert hosts.silent_for("a") == 0 and asked["a:22"] == 1  # One that answers is asked after the period only.
        silent.remove("b")
        launch.wait_until(lambda: hosts.now() == (a, b, c), "b's return", 20)
        assert hosts.silent_for("b") == 0
