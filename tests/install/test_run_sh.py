"""run.sh, with a fake Python beside it that prints what it was given."""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHOWN = [
    "CTR_TRAINER_THREADS",
    "OMP_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "PYTHONUNBUFFERED",
    "PYTHONPATH",
]


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def fake_python(name):
    """Returns a script that prints its name, arguments, directory and the variables above, each on its own line."""
    variables = "\n".join(f'echo "{variable}=${variable}"' for variable in SHOWN)
    return f'echo "python={name}"\nfor a in "$@"; do echo "argument=$a"; done\necho "directory=$PWD"\n{variables}'


@pytest.fixture
def checkout(tmp_path):
    """A copy of run.sh with a .venv whose python is fake, on a machine of 8 cores."""
    directory = tmp_path / "a checkout"
    directory.mkdir()
    shutil.copy(ROOT / "run.sh", directory)
    write_program(directory / ".venv" / "bin" / "python", fake_python("venv"))
    write_program(tmp_path / "bin" / "nproc", "echo 8")
    # Without it a container's CPU quota would show through.
    text = (directory / "run.sh").read_text()
    assert "/sys/fs/cgroup/cpu.max" in text
    (directory / "run.sh").write_text(text.replace("/sys/fs/cgroup/cpu.max", f'"{tmp_path}/cpu.max"'))
    return directory


def run(checkout, *arguments, cwd=None, **variables):
    """Runs run.sh; returns (list of arguments, dict of the other lines)."""
    path = f"{checkout.parent / 'bin'}:{os.environ['PATH']}"
    env = {"PATH": path, "HOME": str(checkout), **variables}
    done = subprocess.run(
        [checkout / "run.sh", *arguments], env=env, cwd=cwd, capture_output=True, text=True, timeout=60, check=True
    )
    lines = [line.split("=", 1) for line in done.stdout.splitlines()]
    return [value for name, value in lines if name == "argument"], dict(lines)


@pytest.mark.parametrize(
    ("quota", "workers", "threads"),
    [
        ("", "", "8"),
        ("", "3", "2"),
        ("", "9", "1"),
        ("300000 100000", "", "3"),
        ("max 100000", "", "8"),
        ("50000 100000", "", "1"),
        ("1600000 100000", "", "8"),
    ],
)
def test_workers_of_a_machine_share_the_cores_of_its_cpu_quota(checkout, quota, workers, threads):
    if quota:
        (checkout.parent / "cpu.max").write_text(quota + "\n")
    _, shown = run(checkout, "--max_steps=1", **({"HOROVOD_LOCAL_SIZE": workers} if workers else {}))
    assert [shown[name] for name in SHOWN[:4]] == [threads, threads, threads, "1"]


def test_what_the_caller_set_stays_and_the_package_beside_it_is_found(checkout):
    own = {name: str(number) for number, name in enumerate(SHOWN[:4], start=11)}
    _, shown = run(checkout, "--max_steps=1", HOROVOD_LOCAL_SIZE="2", **own)
    assert {name: shown[name] for name in own} == own
    _, shown = run(checkout, "--max_steps=1", PYTHONPATH="/elsewhere")
    assert shown["PYTHONPATH"] == f"{checkout}:/elsewhere"


def test_arguments_are_passed_on_and_without_any_it_trains_the_demo(checkout, tmp_path):
    given = ["--flagfile=x.flags", "--model_dir=with a space", "--glob=*", ""]
    arguments, shown = run(checkout, *given, cwd=tmp_path)
    assert arguments == ["-m", "ctr_trainer", "train", *given]
    assert shown["directory"] == str(tmp_path)  # Paths are relative to the caller.
    arguments, shown = run(checkout, cwd=tmp_path)
    assert arguments == ["-m", "ctr_trainer", "train", "--flagfile=configs/demo.flags"]
    assert shown["directory"] == str(checkout)


def test_its_status_is_that_of_the_training_by_the_venv_or_else_python3(checkout):
    write_program(checkout / ".venv" / "bin" / "python", "exit 7")
    assert subprocess.run([checkout / "run.sh", "--max_steps=1"], timeout=60).returncode == 7
    shutil.rmtree(checkout / ".venv")
    write_program(checkout.parent / "bin" / "python3", fake_python("path"))
    _, shown = run(checkout, "--max_steps=1")
    assert shown["python"] == "path"
