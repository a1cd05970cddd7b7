"""The program of a worker of `launch`, and the gate at which workers on this host wait until they may begin."""

import contextlib
import importlib
import os
import pathlib
import runpy
import socket
import sys
import threading

from ctr_trainer.system.processes import tensorflow_import
from ctr_trainer.system.processes.hardware import usable_cores

GATE = "CTR_TRAINER_GATE"
_GO = b"g"
_BACKLOG = 1024


class StartingGate:
    """A port on this host at which workers wait. If this process ends, the waiting workers end as well.

    Attributes:
      address: `host:port`, for `wait_at`.
    """

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self.address = "{}:{}".format(*self._server.getsockname())

    def open(self) -> None:
        """Releases the waiting workers, and workers that arrive later."""
        threading.Thread(target=self._let_in, name="gate", daemon=True).start()

    def close(self) -> None:
        """Ends the workers that are still waiting."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # Wakes the thread.
        self._server.close()

    def _let_in(self) -> None:
        with contextlib.suppress(OSError):  # The gate was closed.
            while True:
                worker, _ = self._server.accept()
                with worker, contextlib.suppress(OSError):  # The worker was killed.
                    worker.sendall(_GO)


def wait_at(address: str) -> None:
    """Waits until the gate is opened. Ends this process if the gate is closed or the launcher ends."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port))) as gate:
            gate.settimeout(None)  # The wait may take days. If the launcher ends, the connection ends.
            if gate.recv(1) == _GO:
                return
    except OSError:
        pass
    sys.exit("the launcher has ended")


def main() -> None:
    """Runs `python -m ctr_trainer train` with this process's arguments, and with a thread per core of its share."""
    threads = max(usable_cores() // int(os.environ.get("HOROVOD_LOCAL_SIZE", 1)), 1)
    # Numba and the settings read these variables when they are imported.
    for name in ("CTR_TRAINER_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(name, str(threads))
    if gate := os.environ.pop(GATE, ""):
        tensorflow_import.load()
        importlib.import_module(
            "ctr_trainer.commands.experiment.build"
        )  # Imports TensorFlow, Horovod and the kernels, too.
        wait_at(gate)
    sys.argv[1:1] = ["train"]
    runpy.run_module("ctr_trainer", run_name="__main__", alter_sys=True)


def run_sh() -> None:
    """Trains as the checkout's `./run.sh` does, which is the demo if there are no arguments.

    This is the installed command `run.sh`, which the shell of `horovodrun -np 2 run.sh` finds on the PATH.
    """
    checkout, arguments = pathlib.Path(__file__).parents[2], sys.argv[1:]
    if not arguments and (checkout / "run.sh").exists():
        os.chdir(checkout)
        arguments = ["--flagfile=configs/demo.flags"]
    os.execv(sys.executable, [sys.executable, "-m", __name__, *arguments])


if __name__ == "__main__":
    main()
