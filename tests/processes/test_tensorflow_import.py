"""What the import of the package and of TensorFlow writes, imports, and decides for later sessions."""

import subprocess
import sys

_IMPORT = """
import gc, sys
from ctr_trainer.system.processes import tensorflow_import
tensorflow_import.load()
assert gc.isenabled() and gc.get_freeze_count() > 100_000
assert "keras" in sys.modules and not {"matplotlib", "pandas", "scipy", "sklearn"} & {*sys.modules}
import sklearn
tensorflow_import.load()
"""

# A session of its own computes keys, in the calling thread. The training after it still gets the threads it asks for.
_THREADS = """
import os
import pyarrow as pa
from ctr_trainer.features import hashing
from ctr_trainer.ranks import collectives
import tensorflow.compat.v1 as tf1

assert hashing.keys("city", pa.array(["a", "b"])).shape == (2,)
before = len(os.listdir("/proc/self/task"))
with tf1.Graph().as_default() as graph:
    product = tf1.matmul(tf1.ones([9, 9]), tf1.ones([9, 9]))
with tf1.Session(graph=graph, config=collectives.config_proto(0, 0, threads=7)) as session:
    session.run(product)
    created = len(os.listdir("/proc/self/task")) - before
assert created >= 14, f"{created} threads, but 7 within operations and 7 between them were asked for"
"""


def _run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_import_writes_nothing_and_leaves_libraries_as_they_are():
    _run(_IMPORT)


def test_a_training_has_its_own_threads_after_keys_were_computed():
    _run(_THREADS)
