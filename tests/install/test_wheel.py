"""The wheel in a virtual environment of its own: without the checkout on the path, and without Horovod."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.request
import venv
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.integration, pytest.mark.slow]
_SECONDS = 300

# One process runs all commands that end by themselves, because an import of TensorFlow takes seconds.
COMMANDS = """
import importlib.util, pathlib, sys
import ctr_trainer
from ctr_trainer import cli
assert pathlib.Path(ctr_trainer.__file__).is_relative_to(sys.prefix), ctr_trainer.__file__
assert importlib.util.find_spec("horovod") is None
model, how = ["--model_dir=model"], ["--batch_size=200", "--hidden_units=8", "--recipe=none", "--threads=1"]
for command in (
    ["convert", "--format=synthetic", "--rows=2000", "--output=data"],
    ["train", "--train_data=data/train", *how, *model],
    ["evaluate", "--eval_data=data/test", *model],
    ["predict", "--eval_data=data/test", "--output=predictions.parquet", *model],
    ["export", "--export_dir=export/1", *model],
    ["publish", "--to=publication", *model],
):
    status = cli.main(command)
    assert status == 0, (command, status)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of a copy of the sources; a build in the checkout would leave files there."""
    directory = tmp_path_factory.mktemp("wheel")
    source = directory / "source"
    shutil.copytree(ROOT / "ctr_trainer", source / "ctr_trainer", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    subprocess.run(
        [*pip, source, "--no-deps", "--no-build-isolation", "--wheel-dir", directory], check=True, timeout=_SECONDS
    )
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """A virtual environment with the wheel and what the tests' own environment has, except Horovod and this package."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory / "venv", symlinks=True)
    python = directory / "venv" / "bin" / "python"
    others = directory / "others"
    others.mkdir()
    for path in pathlib.Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(("__editable__", "ctr_trainer", "ctr-trainer", "horovod")):
            (others / path.name).symlink_to(path)
    (site_packages,) = (directory / "venv").glob("lib/python*/site-packages")
    (site_packages / "others.pth").write_text(f"{others}\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], check=True, timeout=_SECONDS)
    _copy_kernels(site_packages / "ctr_trainer")
    return directory / "venv"


def _copy_kernels(package):
    """Copies the checkout's compiled kernels: to compile them takes longer than all the rest of the test."""
    for kernel in (ROOT / "ctr_trainer").rglob("*.nb[ic]"):
        source = pathlib.Path(*kernel.parts[len(ROOT.parts) + 1 : -2], f"{kernel.name.partition('.')[0]}.py")
        if (package / source).exists():
            (package / source.parent / "__pycache__").mkdir(exist_ok=True)
            shutil.copy2(kernel, package / source.parent / "__pycache__")
            shutil.copystat(ROOT / "ctr_trainer" / source, package / source)  # Numba compares the time of the source.


@pytest.fixture(scope="module")
def run(environment, tmp_path_factory):
    """Starts a program of the environment in an empty directory, and returns its `Popen`."""
    directory = tmp_path_factory.mktemp("run")
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    variables = {name: value for name, value in os.environ.items() if name not in hidden}

    def run(program, *arguments):
        return subprocess.Popen(
            [environment / "bin" / program, *arguments],
            cwd=directory,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return run


def test_the_wheel_has_the_feature_specs_the_types_and_all_other_data(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    there = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "ctr_trainer").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if ".dist-info" not in name} == there
    assert {"ctr_trainer/py.typed", "ctr_trainer/features/specs/demo.toml"} <= names


def test_it_converts_trains_evaluates_predicts_exports_publishes_and_scores(run):
    process = run("python", "-c", COMMANDS)
    output, errors = process.communicate(timeout=_SECONDS)
    assert process.returncode == 0, output + errors
    assert '"auc": ' in output
    address = ("--bind=127.0.0.1:0", "--port_file=port", "--timeout_secs=60")
    server = run("ctr-trainer", "score", "--model=publication", "--name=clicks", *address)
    try:
        lines = []
        while not any("global step" in line for line in lines):
            lines.append(server.stderr.readline())
            assert lines[-1], lines
        port = pathlib.Path(f"/proc/{server.pid}/cwd/port").read_text().rpartition(":")[2]
        example = {f"C{i}": 7 for i in range(1, 27)} | {f"I{i}": 0.5 for i in range(1, 14)}
        body = json.dumps({"instances": [example]}).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models/clicks:predict", body, 60) as answer:
            (prediction,) = json.loads(answer.read())["predictions"]
        assert 0 < prediction["probabilities"] < 1
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.communicate()
