"""What the import of the package and of TensorFlow imports, leaves out, and decides for later sessions."""

import subprocess
import sys

import pytest

_IMPORT = """
import gc, sys
from ctr_trainer.system.processes import tensorflow_import
tensorflow_import.load()
assert gc.isenabled() and gc.get_freeze_count() > 100_000
assert "keras" in sys.modules and not {"matplotlib", "pandas", "scipy", "sklearn"} & {*sys.modules}
import sklearn
tensorflow_import.load()
"""
# In a notebook, Keras keeps what it has found when it was imported, and this package is not the only one.
_IN_A_NOTEBOOK = """
import gc, sys
import ctr_trainer as ctr
import pyarrow as pa
{use}
assert {{"keras", "sklearn"}} <= {{*sys.modules}} and gc.get_freeze_count() < 100_000
"""
_USES = (
    "ctr.Estimator",
    "from ctr_trainer.features import hashing; hashing.keys('city', pa.array(['a']))",
    "ctr.train(pa.table({'x': [0.5, 1.5, 2.5] * 20, 'clicked': [0, 1] * 30}), model='lr', epochs=1)",
)

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
    assert done.returncode == 0, done.stderr


def test_the_import_of_a_command_leaves_libraries_as_they_are():
    _run(_IMPORT)


@pytest.mark.parametrize("use", _USES)
def test_in_a_notebook_keras_finds_the_packages_and_nothing_is_frozen(use):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install scikit-learn")
    _run(_IN_A_NOTEBOOK.format(use=use))


def test_a_training_has_its_own_threads_after_keys_were_computed():
    _run(_THREADS)
