"""What the import of the package and of TensorFlow writes, imports, and decides for later sessions."""

import os
import subprocess
import sys

import pytest

from ctr_trainer.system.processes import tensorflow_import

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

assert hashing.keys("city", pa.array(["a", "b"])).shape == (2,)
from ctr_trainer.ranks import horovod
import tensorflow.compat.v1 as tf1
before = len(os.listdir("/proc/self/task"))
with tf1.Graph().as_default() as graph:
    product = tf1.matmul(tf1.ones([9, 9]), tf1.ones([9, 9]))
with tf1.Session(graph=graph, config=horovod.config_proto(0, 0, threads=7)) as session:
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


@pytest.mark.parametrize("has_any", [True, False])
def test_only_the_notices_of_tensorflow_are_left_out(monkeypatch, capfd, has_any):
    monkeypatch.setattr(tensorflow_import.hardware, "has_any", lambda flags: has_any)
    with pytest.raises(ImportError), tensorflow_import._without_notices():
        os.write(2, b"I0000 port.cc:153] oneDNN custom operations are on. You may see\nE0000 a cause\n")
        raise ImportError
    os.write(2, b"after\n")
    assert capfd.readouterr().err.splitlines()[not has_any :] == ["E0000 a cause", "after"]
