"""One worker needs no Horovod; several say how to install it."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests import small

# Runs commands of the package, one JSON list of arguments each, in a process in which `import horovod` fails.
_WITHOUT_HOROVOD = """
import importlib.abc, json, sys

class NoHorovod(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "horovod":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoHorovod())
from ctr_trainer import cli

for command in sys.argv[1:]:
    if status := cli.main(json.loads(command)):
        sys.exit(status)
assert not any(name.partition(".")[0] == "horovod" for name in sys.modules)
"""


def _run(*commands, **environment):
    """Returns the finished process."""
    return subprocess.run(
        [sys.executable, "-c", _WITHOUT_HOROVOD, *map(json.dumps, commands)],
        env={**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[2]), **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.integration
@pytest.mark.slow
def test_without_horovod_one_worker_runs_every_command(tmp_path):
    data, model, export = (str(tmp_path / name) for name in ("data", "model", "export"))
    flags = [f"--train_data={data}/train", f"--eval_data={data}/test", f"--model_dir={model}", "--batch_size=64"]
    done = _run(
        ["convert", "--format=synthetic", "--rows=2000", f"--output={data}"],
        ["train", *flags, "--max_steps=12", "--eval_steps=6"],
        ["train", *flags, "--max_steps=15"],  # Resumes.
        ["evaluate", *flags],
        ["predict", *flags, f"--output={tmp_path / 'scores.parquet'}"],
        ["export", *flags, f"--export_dir={export}"],
    )
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [each["global_step"] for each in said if "global_step" in each][-1] == 15
    assert said[-1] == {"export_dir": export, "global_step": 15}
    assert (pathlib.Path(export) / "saved_model.pb").exists()


@pytest.mark.integration
def test_without_horovod_several_workers_say_how_to_install_it(tmp_path):
    rank = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "2"}
    command = ["train", f"--train_data={small.make(tmp_path, rows=64)}", f"--model_dir={tmp_path / 'model'}"]
    done = _run(command, **rank)
    assert done.returncode == 1
    assert "2 workers need Horovod with TensorFlow support, which cannot be imported (No module named" in done.stderr
    assert "python -m ctr_trainer.system.installation.build_horovod" in done.stderr
