"""The program of a worker of `launch`: `train`, with the worker's share of its host's cores as threads."""

import importlib
import os
import runpy
import sys

from ctr_trainer.launch.gate import GATE, wait_at
from ctr_trainer.system.processes import tensorflow_import
from ctr_trainer.system.processes.hardware import usable_cores


def main() -> None:
    """Runs `python -m ctr_trainer train` with the arguments of this process."""
    threads = max(usable_cores() // int(os.environ.get("HOROVOD_LOCAL_SIZE", 1)), 1)
    # Numba and the settings read these variables when they are imported.
    for name in ("CTR_TRAINER_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(name, str(threads))
    if gate := os.environ.pop(GATE, ""):
        tensorflow_import.install()
        importlib.import_module(
            "ctr_trainer.experiment.build"
        )  # This also imports TensorFlow, Horovod and the kernels.
        wait_at(gate)
    sys.argv[1:1] = ["train"]
    runpy.run_module("ctr_trainer", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
