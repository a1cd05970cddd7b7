"""A server whose forks run Python programs: they have imported TensorFlow already. `start.py` asks it.

python warm.py SOCKET

It ends when its standard input and the connections of all that hold it (see `hold`) are closed, or when another server
listens at this socket already.
"""

import contextlib
import errno
import gc
import importlib
import json
import os
import random
import selectors
import signal
import socket
import sys
import warnings

# What the programs need, but nothing of `ctr_trainer.ranks`, which looks at the environment when it is imported.
IMPORTED = (
    *("horovod.tensorflow", "pyarrow.csv", "pyarrow.dataset", "pyarrow.flight", "pyarrow.json", "pyarrow.parquet"),
    *("tensorflow", "tensorflow.compat.v1", "ctr_trainer.data.reader", "ctr_trainer.embedding.service.client"),
    *("ctr_trainer.embedding.service.local_service", "ctr_trainer.embedding.service.service"),
    *("ctr_trainer.embedding.store.local_store", "ctr_trainer.embedding.worker.row_copies"),
    *("ctr_trainer.embedding.worker.lookup", "ctr_trainer.embedding.worker.copied_rows"),
    *("ctr_trainer.models.metrics.evaluation_metrics", "ctr_trainer.models.metrics.click_metrics"),
)


def hold(path: str) -> socket.socket:
    """Returns a connection that keeps the server running while it is open."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    connection.sendall(bytes(4))
    return connection


class Server:
    """Forks a process for each request, and sends its end; kills it when the connection of the request is closed."""

    def __init__(self, path: str) -> None:
        self._path, self._holders = path, {sys.stdin}
        self._clients: dict[int, socket.socket] = {}  # By process.
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(path)
        self._listening.listen(64)
        self._woken, self._waking = socket.socketpair()  # When a process ends.
        for each in (self._woken, self._waking):
            each.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waking.fileno())
        self._selector = selectors.DefaultSelector()
        for each in (self._listening, self._woken, sys.stdin):
            self._selector.register(each, selectors.EVENT_READ, None)

    def next_program(self) -> list[str]:
        """Returns in each forked process, with the arguments of its program; in the server when it ends, with none."""
        while self._holders:
            ready = self._selector.select()[0][0]  # One at a time: it may close another.
            if ready.fileobj in self._holders:
                self._selector.unregister(ready.fileobj)
                self._holders.remove(ready.fileobj)
            elif ready.fileobj is self._woken:
                self._woken.recv(4096)
                for pid in list(self._clients):
                    if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                        self._end(pid)
            elif ready.fileobj is not self._listening:
                self._end(ready.data)
            elif arguments := self._accept(self._listening.accept()[0]):
                return arguments
        os.unlink(self._path)
        return []

    def _accept(self, client: socket.socket) -> list[str]:
        """Forks for a request. Returns the program's arguments in the fork, and nothing in the server."""
        head, streams, *_ = socket.recv_fds(client, 4, 3)
        size = int.from_bytes(head, "little")
        if not size:
            self._holders.add(client)
            self._selector.register(client, selectors.EVENT_READ, None)
            return []
        request = client.recv(size, socket.MSG_WAITALL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # The threads of OpenBLAS and jemalloc, which take care of forks.
            pid = os.fork()
        if pid:
            for stream in streams:
                os.close(stream)
            self._clients[pid] = client
            self._selector.register(client, selectors.EVENT_READ, pid)
            with contextlib.suppress(OSError):
                client.sendall(pid.to_bytes(4, "little"))
            return []
        client.close()
        self._become(streams, *json.loads(request))
        return json.loads(request)[0]

    def _become(
        self, streams: list[int], arguments: list[str], directory: str, environment: dict[str, str], executable: str
    ) -> None:
        """Gives this process, which is a fork, its own surroundings."""
        os.setsid()
        sys.executable = executable
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._waking.close()
        for key in list(self._selector.get_map().values()):
            if key.fileobj is not sys.stdin:
                key.fileobj.close()
        self._selector.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(environment)
        paths = environment.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[1:1] = [path for path in paths if path not in sys.path]
        with contextlib.suppress(ModuleNotFoundError):  # As Python does at its start.
            sys.modules.pop("sitecustomize", None)
            importlib.import_module("sitecustomize")
        random.seed()
        sys.modules["numpy"].random.seed()

    def _end(self, pid: int) -> None:
        """Waits for a process that has ended, or whose client has, and tells the client how it ended."""
        client = self._clients.pop(pid)
        self._selector.unregister(client)
        os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(OSError):
            client.sendall(status.to_bytes(4, "little", signed=True))
        client.close()


def _import() -> None:
    """Imports `IMPORTED`, as `train` imports TensorFlow, but without oneDNN.

    oneDNN compiles a kernel for each shape, which takes a tenth of the CPU time of a short training.
    """
    from ctr_trainer.system.processes import tensorflow_import
    from tests import graphs

    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"  # Not for the forks: each gets its own environment.
    tensorflow_import.load()
    for name in IMPORTED:
        with contextlib.suppress(ModuleNotFoundError):  # Horovod may be missing.
            importlib.import_module(name)
    graphs.run_as_built()
    gc.collect()
    gc.freeze()


def main() -> None:
    try:
        server = Server(sys.argv[1])
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return
        raise
    _import()
    if program := server.next_program():
        from tests.parallel import start

        start.run_program(program)


if __name__ == "__main__":
    main()
