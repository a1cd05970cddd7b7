"""Two hosts of network namespaces, which reach each other by ssh."""

import contextlib
import os
import re
import subprocess

import pytest

from ctr_trainer.system.messages.errors import UserError
from tests.hosts import machines as simulated
from tests.parallel import launch


class Hosts:
    """Two hosts.

    Args:
      machines: of `simulated.machines`.
      programs: directory with the `ssh` that reaches them.
      shared: the directory that they share.
    """

    def __init__(self, machines, programs, shared):
        self.machines, self.shared = machines, shared
        path = os.pathsep.join([str(programs), launch.environment()["PATH"]])
        self.environment = {**launch.environment(), "PATH": path}

    def start(self, command, host=0, **variables):
        """Starts a shell command on a host; returns the process, whose output is text in one pipe."""
        return subprocess.Popen(
            self.machines[host].command(["sh", "-c", command]),
            cwd=launch.ROOT,
            env={**self.environment, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command, host=0, seconds=launch.TIMEOUT_SECONDS, **variables):
        """Runs a shell command on a host to its end. -> (status, output)"""
        process = self.start(command, host, **variables)
        try:
            output, _ = process.communicate(timeout=seconds)
        finally:
            process.kill()
        return process.returncode, output

    def processes(self, host):
        """Returns the process ids of the processes on a host."""
        return [int(pid) for pid in simulated._run(["ip", "netns", "pids", self.machines[host].namespace]).split()]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """`Hosts`; skips where this machine cannot make them."""
    shared = tmp_path_factory.mktemp("shared")
    with contextlib.ExitStack() as stack:
        try:
            simulated.require_privileges()
            machines = stack.enter_context(simulated.machines(2, sorted(os.sched_getaffinity(0))))
        except UserError as error:
            pytest.skip(str(error))
        programs = stack.enter_context(simulated.ssh_daemons(machines, tmp_path_factory.mktemp("ssh")))
        yield Hosts(machines, programs, shared)


@pytest.fixture(scope="module")
def port(hosts):
    """The port of a shard on the first host, for those who have the `token`."""
    (hosts.shared / "token").write_text("secret")
    serve = f"serve --bind=0.0.0.0:0 --data_dir={hosts.shared} --token_file={hosts.shared / 'token'}"
    process = hosts.start(f"exec python -m ctr_trainer {serve}")
    line = next(line for line in process.stdout if "answers on" in line)
    yield re.search(r"answers on 0.0.0.0:(\d+)", line)[1]
    process.terminate()
    process.communicate(timeout=60)
