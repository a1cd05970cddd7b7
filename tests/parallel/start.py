"""Starts a worker of a test as `train` starts: with what spares a second of each import of TensorFlow.

python start.py WORKER.py ARGUMENT...
"""

import runpy
import sys

from ctr_trainer.processes import tensorflow_import

tensorflow_import.install()
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
