"""What a command that imports TensorFlow writes and imports."""

import subprocess
import sys

_PROGRAM = """
import gc, sys
from ctr_trainer.system.processes import tensorflow_import
tensorflow_import.load()
assert gc.isenabled() and gc.get_freeze_count() > 100_000
assert "keras" in sys.modules and not {"matplotlib", "pandas", "scipy", "sklearn"} & {*sys.modules}
import sklearn
tensorflow_import.load()
"""


def test_the_import_writes_nothing_and_leaves_libraries_as_they_are():
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
