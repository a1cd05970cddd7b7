"""The program of a worker of `launch`, which may wait for the launcher before it begins."""

import importlib
import os
import pathlib
import runpy
import sys

from ctr_trainer.system.processes import tensorflow_import
from ctr_trainer.system.processes.hardware import usable_cores

GATE = "CTR_TRAINER_GATE"


def wait_for(gate: str) -> None:
    """Waits for a byte in the FIFO `gate`. Ends this process if the launcher has ended, even if it was killed."""
    try:
        descriptor = os.open(gate, os.O_RDONLY | os.O_NONBLOCK)  # Without this flag, it would wait for a launcher.
    except FileNotFoundError:
        sys.exit("the launcher has ended")
    os.set_blocking(descriptor, True)
    may_begin = os.read(descriptor, 1)
    os.close(descriptor)
    if not may_begin:
        sys.exit("the launcher has ended")


def main() -> None:
    """Runs `python -m ctr_trainer train` with this process's arguments, and with a thread per core of its share."""
    threads = max(usable_cores() // int(os.environ.get("HOROVOD_LOCAL_SIZE", 1)), 1)
    # Numba and the settings read these variables when they are imported.
    for name in ("CTR_TRAINER_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(name, str(threads))
    if gate := os.environ.pop(GATE, ""):
        tensorflow_import.load()
        importlib.import_module("ctr_trainer.commands.experiment.build")  # Also TensorFlow, Horovod and the kernels.
        wait_for(gate)
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
