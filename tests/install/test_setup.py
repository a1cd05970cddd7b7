import importlib
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

import ctr_trainer
from tests import small

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def metadata(tmp_path_factory):
    """Returns the text of each file of metadata that setuptools makes, by the file's name."""
    base = tmp_path_factory.mktemp("egg_info")
    ask = [sys.executable, "setup.py", "--quiet"]
    subprocess.run([*ask, "egg_info", "--egg-base", base], cwd=ROOT, check=True, timeout=120, capture_output=True)
    info = base / "ctr_trainer.egg-info"
    return {name: (info / name).read_text() for name in ("PKG-INFO", "requires.txt", "entry_points.txt")}


def extras(metadata):
    """Returns the requirement lines by extra ("" for what is always needed)."""
    sections, section = {"": []}, ""
    for line in metadata["requires.txt"].splitlines():
        if line.startswith("["):
            section = line[1:-1]
            sections[section] = []
        elif line:
            sections[section].append(line)
    return sections


def test_the_metadata_has_the_version_the_commands_and_no_dead_link(metadata):
    lines = metadata["PKG-INFO"].splitlines()
    assert "Name: ctr_trainer" in [line.replace("-", "_") for line in lines]
    assert f"Version: {ctr_trainer.__version__}" in lines
    assert "Requires-Python: >=3.10" in lines
    assert "## Your own data" in metadata["PKG-INFO"]
    assert re.findall(r"\]\((?!https?://)[^)]*\)", metadata["PKG-INFO"]) == []
    commands = metadata["entry_points.txt"].splitlines()
    assert {"ctr-trainer = ctr_trainer.cli:main", "ctr_trainer = ctr_trainer.cli:main"} <= set(commands)


def test_tensorflow_is_an_extra_and_tomli_for_pythons_without_tomllib(metadata):
    requirements = extras(metadata)
    assert "pyarrow>=14.0.1" in requirements[""]
    assert not [line for line in requirements[""] if "tensorflow" in line or "horovod" in line]
    assert requirements["cpu"][0].startswith("tensorflow-cpu")
    assert requirements["gpu"][0].startswith("tensorflow[and-cuda]")
    assert {"pytest", "pytest-timeout", "ruff"} <= set(requirements["test"])
    assert requirements[':python_version < "3.11"'] == ["tomli"]


@pytest.mark.integration
def test_horovodrun_of_run_sh_on_the_path_trains_all_its_workers(metadata, tmp_path):
    """The job has the installed command on its PATH, as with .venv/bin there."""
    module, name = _run_sh(metadata)
    command = tmp_path / "run.sh"
    command.write_text(f"#!{sys.executable}\nimport sys\nfrom {module} import {name}\nsys.exit({name}())\n")
    command.chmod(0o755)
    bin_of_python = pathlib.Path(sys.executable).parent
    path = os.pathsep.join([str(tmp_path), str(bin_of_python), os.environ["PATH"]])
    data, model = small.make(tmp_path, rows=100), tmp_path / "model"
    flags = [f"--train_data={data}", f"--model_dir={model}", "--batch_size=10", "--hidden_units=8", "--recipe=none"]
    done = subprocess.run(
        [bin_of_python / "horovodrun", "-np", "2", "--gloo", "run.sh", *flags],
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((model / "train_summary.json").read_text())
    assert (summary["workers"], summary["steps"], summary["examples"]) == (2, 5, 100)


def test_the_installed_run_sh_without_arguments_trains_the_demo_too(metadata, monkeypatch, tmp_path):
    module, name = _run_sh(metadata)
    called = []
    monkeypatch.setattr(os, "execv", lambda program, arguments: called.append((os.getcwd(), arguments[1:])))
    monkeypatch.chdir(tmp_path)
    for arguments in ([], ["--flagfile=x.flags", "--model_dir=with a space"]):
        monkeypatch.setattr(sys, "argv", ["run.sh", *arguments])
        getattr(importlib.import_module(module), name)()
        os.chdir(tmp_path)
    assert called == [
        (str(ROOT), ["-m", "ctr_trainer.launch.worker", "--flagfile=configs/demo.flags"]),
        (str(tmp_path), ["-m", "ctr_trainer.launch.worker", "--flagfile=x.flags", "--model_dir=with a space"]),
    ]


def _run_sh(metadata):
    """Returns the module and the function of the installed command `run.sh`."""
    (entry,) = re.findall(r"^run\.sh *= *([\w.]+):(\w+)$", metadata["entry_points.txt"], re.MULTILINE)
    return entry
