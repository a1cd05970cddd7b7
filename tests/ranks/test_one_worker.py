"""Several workers without Horovod say how to install it; tests/install/test_wheel.py has one worker."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests import small

# Runs a command of the package, a JSON list of arguments, in a process in which `import horovod` fails.
_WITHOUT_HOROVOD = """
import importlib.abc, json, sys

class NoHorovod(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "horovod":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoHorovod())
from ctr_trainer import cli

sys.exit(cli.main(json.loads(sys.argv[1])))
"""


@pytest.mark.integration
def test_without_horovod_several_workers_say_how_to_install_it(tmp_path):
    rank = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "2"}
    command = ["train", f"--train_data={small.make(tmp_path, rows=64)}", f"--model_dir={tmp_path / 'model'}"]
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_HOROVOD, json.dumps(command)],
        env={**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[2]), **rank},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 1
    assert "2 workers need Horovod with TensorFlow support, which cannot be imported (No module named" in done.stderr
    assert "python -m ctr_trainer.system.installation.build_horovod" in done.stderr
