"""The lines that TensorFlow writes when it is imported, and what it imports."""

import subprocess
import sys

# What TensorFlow 2.21 writes to the descriptor, as it is.
NOISE = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795304035.091887    8708 port.cc:153] oneDNN custom operations are on. You may see slightly different \
numerical results due to floating-point round-off errors from different computation orders. To turn them off, set the \
environment variable `TF_ENABLE_ONEDNN_OPTS=0`.
I0000 00:00:1795304035.126015    8708 cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use available \
CPU instructions in performance-critical operations.
To enable the following instructions: AVX2 AVX512F FMA, in other operations, rebuild TensorFlow with the appropriate \
compiler flags.
"""


def _import(directory, module, after="os.write(2, b'after\\n' + tensorflow.NOISE)"):
    """Returns (status, stderr) of a process that imports a package with the name tensorflow."""
    (directory / "tensorflow.py").write_text(f"import os\nNOISE = {NOISE!r}.encode()\n{module}")
    program = (
        "import gc, os, sys\nfrom ctr_trainer.system.processes import tensorflow_import\ntensorflow_import.install()\n"
        f"sys.path.insert(0, {str(directory)!r})\nbefore = gc.get_freeze_count()\nimport tensorflow\n{after}"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


def test_the_lines_are_gone_and_all_others_come_through_in_their_order(tmp_path):
    module = "os.write(2, b'first\\n' + NOISE + b'E0000 no device\\nWARNING: no GPU\\n' + NOISE + b'half a line')"
    status, said = _import(tmp_path, module)
    assert status == 0
    # Only the import is filtered: what comes later is as it is.
    assert said == "first\nE0000 no device\nWARNING: no GPU\nhalf a line" + "after\n" + NOISE


def test_what_an_import_says_that_crashes_is_not_lost(tmp_path):
    status, said = _import(tmp_path, "os.write(2, NOISE + b'illegal instruction\\n')\nos.abort()")
    assert status == -6
    assert said == "illegal instruction\n"
    status, said = _import(tmp_path, "os.write(2, NOISE)\nraise ImportError('no such library')")
    assert status == 1
    assert said.endswith("ImportError: no such library\n")


def test_the_collector_rests_while_tensorflow_is_imported(tmp_path):
    module = "import gc\nMEANWHILE, KEPT = gc.isenabled(), [[] for _ in range(1000)]"
    after = "sys.exit(f'{tensorflow.MEANWHILE} {gc.isenabled()} {gc.get_freeze_count() - before > 1000}')"
    assert _import(tmp_path, module, after) == (1, "False True True\n")


def test_importing_tensorflow_prints_nothing_and_loads_no_further_libraries(tmp_path):
    program = (
        "import sys\nfrom ctr_trainer import cli\nstatus = cli.main(['train', '--model=deepfm', '--help'])\n"
        "assert 'keras' in sys.modules and not {'matplotlib', 'pandas', 'scipy', 'sklearn'} & {*sys.modules}\n"
        "import matplotlib, sklearn\nsys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0
    assert done.stderr == ""
