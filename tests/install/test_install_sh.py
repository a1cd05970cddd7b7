"""scripts/install.sh in a copy of the checkout, on a PATH that holds only what a test puts there.

Whole installations are by the Python that runs the tests, its venv and its pip, from wheels that hold nothing but their
names. Only Horovod's build is a stand-in; tests/install/test_build_horovod.py is about it. Where the version of Python
matters, a Python that tells another version stands in for one that is not installed here.
"""

import hashlib
import importlib.metadata
import json
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
from packaging.requirements import Requirement

from ctr_trainer.features.toml import tomllib

# What `scripts/install.sh` runs before anything is installed.
MODULES_OF_INSTALLATION = (
    "system/messages/errors",
    "system/processes/child",
    "system/processes/hardware",
    "system/installation/build_horovod",
    "system/installation/compile_kernels",
)
ROOT = pathlib.Path(__file__).resolve().parents[2]
SHELL_TOOLS = ["bash", "env", "cat", "chmod", "cksum", "cp", "dirname", "grep", "mkdir", "mv", "rm"]

# A Python that answers install.sh as `3.<MINOR>` would, writes down what it was asked to do, and does as little as
# possible of it. It fails at what the file `fail` beside the checkout names.
FAKE_PYTHON = r"""#!/usr/bin/env bash
case "$*" in
    --version) echo "Python 3.MINOR.1"; exit ;;
    *base_prefix*) echo "BASE 3.MINOR.1"; exit ;;
    *version_info*) echo "MINOR BASE 3.MINOR.1"; exit ;;
esac
echo "$*" >>LOG
if [[ -f FAIL ]] && [[ "$*" == *"$(cat FAIL)"* ]]; then exit 1; fi
if [[ $2 == venv ]]; then
    rm -rf .venv
    mkdir -p .venv/bin
    cp BASE .venv/bin/python
    echo "#!$PWD/.venv/bin/python" >.venv/bin/pip
fi
"""


class Machine:
    """A checkout, and a PATH with the shell's tools and what `add_*` adds."""

    def __init__(self, directory):
        self.bin = directory / "bin"
        self.bin.mkdir()
        self.add({tool: shutil.which(tool) for tool in SHELL_TOOLS})
        self.checkout = directory / "checkout"
        for name in (
            "scripts/install.sh",
            "pyproject.toml",
            "setup.py",
            "constraints.txt",
            "ctr_trainer/system/installation/build_tools.txt",
            *(f"ctr_trainer/{m}.py" for m in ("__init__", *MODULES_OF_INSTALLATION)),
        ):
            target = self.checkout / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
        self.log = directory / "log"
        self.fail = directory / "fail"

    def add(self, programs):
        """Adds programs by name: a path, or the minor version of a fake Python."""
        for name, program in programs.items():
            if isinstance(program, int):
                self._add_python(self.bin / name, program)
            else:
                (self.bin / name).symlink_to(program)

    def _add_python(self, path, minor):
        text = FAKE_PYTHON.replace("MINOR", str(minor)).replace("BASE", str(path))
        path.write_text(text.replace("LOG", str(self.log)).replace("FAIL", str(self.fail)))
        path.chmod(0o755)

    def install(self, **variables):
        """Returns (status, stderr, calls of the fake Python: `venv`, `pip`, `...build_horovod`)."""
        self.log.write_text("")
        done = subprocess.run(
            [self.checkout / "scripts" / "install.sh"],
            env={"PATH": str(self.bin), "HOME": str(self.checkout.parent), "PYTHONDONTWRITEBYTECODE": "1", **variables},
            capture_output=True,
            text=True,
            timeout=120,
        )
        asked = [line.split() for line in self.log.read_text().splitlines() if line.startswith("-m")]
        return done.returncode, done.stderr, [words[1] for words in asked if "--check_tools" not in words]

    @property
    def stamp(self):
        return self.checkout / ".venv" / "installed"


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


_PYTHON, _COMPILER, _MAKE = {"python3": sys.executable}, {"c++": "/bin/true"}, {"make": "/bin/true"}


@pytest.mark.parametrize(
    ("there", "variables", "expected"),
    [
        ({}, {}, ["no Python 3.10 or later", "sudo apt-get install -y python3", "sudo dnf install"]),
        ({"python3": 9}, {}, ["no Python 3.10 or later", "python3 is Python 3.9.1", "sudo apt-get install -y python3"]),
        ({"python3": 11, "mine": 8}, {"PYTHON": "mine"}, ["looked for mine on PATH", "mine is Python 3.8.1"]),
        ({"python3": 11, "no venv": 0}, {}, ["ensurepip and venv are missing", "apt-get install -y python3.11-venv"]),
        (_PYTHON | _MAKE, {}, ["no C++ compiler", "c++, g++, clang++", "sudo apt-get install -y g++", "gcc-c++"]),
        (_PYTHON | _COMPILER, {"CXX": "icpx -O2"}, ["no C++ compiler", "looked for icpx on PATH"]),
        (_PYTHON | _COMPILER, {}, ["no make", "sudo apt-get install -y make"]),
    ],
    ids=["python", "old python", "old python that was asked for", "venv", "compiler", "compiler of CXX", "make"],
)
def test_what_is_missing_is_named_with_the_command_that_installs_it(machine, there, variables, expected):
    machine.add(there)
    if "no venv" in there:
        machine.fail.write_text("import ensurepip, venv")
    status, stderr, _ = machine.install(**variables)
    assert status == 1 and not (machine.checkout / ".venv").exists()
    for text in expected:
        assert text in stderr


@pytest.mark.parametrize(
    "names, chosen",
    [
        ({"python3": 9, "python3.12": 12, "python3.10": 10}, "3.12.1"),
        ({"python3": 11, "python3.12": 12}, "3.11.1"),
        ({"python3": 14, "python3.13": 13}, "3.13.1"),
        ({"python3": 14}, "3.14.1"),
    ],
)
def test_python3_is_taken_unless_another_one_suits_better(machine, names, chosen):
    machine.add(names)
    status, stderr, _ = machine.install()
    assert status == 0
    assert f"with Python {chosen}" in stderr
    assert ("newer than what this was tested with" in stderr) == (chosen == "3.14.1")


def test_a_venv_of_others_is_never_emptied(machine):
    machine.add({"python3": 11})
    theirs = machine.checkout / ".venv" / "lib" / "thesis.py"
    theirs.parent.mkdir(parents=True)
    theirs.touch()
    status, stderr, asked = machine.install()
    assert (status, asked) == (1, []) and theirs.exists()
    assert ".venv is there and was not made by this script" in stderr and "Move it away" in stderr


def test_the_venv_of_another_checkout_behind_a_link_is_never_emptied(machine, tmp_path):
    machine.add({"python3": 11})
    theirs = tmp_path / "other" / ".venv"
    (theirs / "bin").mkdir(parents=True)
    (theirs / "tensorflow").write_text("tensorflow-cpu")
    (machine.checkout / ".venv").symlink_to(theirs)
    status, stderr, asked = machine.install()
    assert (status, asked) == (1, []) and (theirs / "bin").exists()
    assert f"is a link to {theirs}" in stderr and "Remove the link" in stderr


def test_clean_removes_what_make_made_and_nothing_else(machine):
    def clean():
        return subprocess.run([machine.checkout / "scripts" / "clean.sh"], capture_output=True, text=True, timeout=60)

    shutil.copy(ROOT / "scripts" / "clean.sh", machine.checkout / "scripts")
    for name in (
        ".venv/lib/thesis.py",
        "build/house/plan",
        "dist/mine.txt",
        "site/notes.txt",
        "x.egg-info/y",
        "ctr_trainer/__pycache__/z",
    ):
        (machine.checkout / name).parent.mkdir(parents=True)
        (machine.checkout / name).touch()
    done = clean()
    assert done.returncode == 1
    kept = ("build: it holds house", "dist: it holds mine.txt", "site: it holds notes.txt")
    for name in (".venv: scripts/install.sh did not make it", *kept):
        assert f"clean: left {name}" in done.stderr
    assert sorted(path.name for path in machine.checkout.iterdir()) == [
        ".venv", "build", "constraints.txt", "ctr_trainer", "dist", "pyproject.toml", "scripts", "setup.py", "site",
    ]  # fmt: skip
    assert not (machine.checkout / "ctr_trainer" / "__pycache__").exists()
    (machine.checkout / ".venv" / "tensorflow").touch()  # as the installation leaves it
    (machine.checkout / "build" / "house").rename(machine.checkout / "build" / "lib")
    (machine.checkout / "dist" / "mine.txt").rename(machine.checkout / "dist" / "mine.whl")
    (machine.checkout / "site" / "notes.txt").rename(machine.checkout / "site" / "index.html")
    assert clean().returncode == 0
    left = sorted(path.name for path in machine.checkout.iterdir())
    assert left == ["constraints.txt", "ctr_trainer", "pyproject.toml", "scripts", "setup.py"]


def test_another_python_gets_a_venv_of_its_own(machine):
    machine.add({"python3": 11, "python3.12": 12})
    machine.install()
    assert machine.install(PYTHON="python3.12")[2][0] == "venv"


def test_the_suite_on_the_next_tensorflow_installs_what_was_released_since(machine):
    machine.add({tool: shutil.which(tool) for tool in ("find", "git", "tar")})
    (machine.bin / "make").write_text('#!/bin/sh\necho "$PIP_UPGRADE" "$@"\n')
    (machine.bin / "make").chmod(0o755)
    shutil.copy(ROOT / "scripts" / "test_python.sh", machine.checkout / "scripts")
    stamp = machine.checkout / "build" / "python-3-next" / ".venv" / "installed"
    stamp.parent.mkdir(parents=True)
    stamp.touch()
    command = ["/bin/sh", "-c", "git init --quiet && scripts/test_python.sh next"]
    environment = {"PATH": str(machine.bin)}
    done = subprocess.run(command, cwd=machine.checkout, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "1 -C build/python-3-next test PYTHON=python3 TF=tensorflow-cpu>=0.dev0 ARGS=\n"
    assert not stamp.exists() and (stamp.parents[1] / "setup.py").exists()


class Checkout(Machine):
    """A `Machine` that installs from wheels of its own by the Python that runs the tests."""

    # Builds nothing: tells that it was asked to, and fails if the file `fail` is there.
    HOROVOD = """
import pathlib, sys
if "--check_tools" not in sys.argv:
    pathlib.Path({built!r}).touch()
    sys.exit(pathlib.Path({fail!r}).exists() and "no Horovod today")
"""
    KERNEL = "# @numba.njit(\nimport pathlib\npathlib.Path({compiled!r}).touch()\n"

    def __init__(self, directory):
        super().__init__(directory)
        self.add(_PYTHON | _COMPILER | _MAKE)
        self.wheels, self.built, self.compiled = (directory / name for name in ("wheels", "built", "compiled"))
        self.wheels.mkdir()
        package = self.checkout / "ctr_trainer"
        horovod = self.HOROVOD.format(built=str(self.built), fail=str(self.fail))
        (package / "system" / "installation" / "build_horovod.py").write_text(horovod)
        (package / "kernel.py").write_text(self.KERNEL.format(compiled=str(self.compiled)))
        _write_wheel_of_setuptools(self.wheels)
        for name, version in {("wheel", "1"), *_requirements()}:  # An old pip asks for `wheel`.
            if name not in ("pip", "setuptools"):  # These do their work here.
                self.add_wheel(name, version)
        locked = {name for name, _ in _requirements("", "cpu", "gpu", "test", "docs", "install")} - {"pip"}
        (self.checkout / "constraints.txt").write_text("".join(map(self._locked, sorted(locked))))

    def _locked(self, name: str) -> str:
        """Returns the lines of constraints.txt for a wheel."""
        (wheel,) = self.wheels.glob(f"{name.replace('-', '_')}-*.whl")
        version, digest = wheel.name.split("-")[1], hashlib.sha256(wheel.read_bytes()).hexdigest()
        return f"{name.lower().replace('_', '-')}=={version} \\\n    --hash=sha256:{digest}\n"

    def add_wheel(self, name, version):
        info = f"{name.replace('-', '_')}-{version}.dist-info"
        with zipfile.ZipFile(self.wheels / f"{info.removesuffix('.dist-info')}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")

    def take_wheel(self, name):
        """Returns the path of a distribution's wheel, out of pip's sight."""
        (wheel,) = self.wheels.glob(f"{name}-*.whl")
        return wheel.rename(self.wheels.parent / wheel.name)

    def install(self, **variables):
        """Runs install.sh without network; returns (status, stderr)."""
        for mark in (self.built, self.compiled):
            mark.unlink(missing_ok=True)
        offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels), "PIP_CONFIG_FILE": "/dev/null"}
        return super().install(**offline, **variables)[:2]

    def installed(self):
        """Returns the version of each distribution in .venv, by name, and the location of the package."""
        code = (
            "import ctr_trainer, importlib.metadata as m, json, pathlib; "
            "print(json.dumps({d.name.replace('_', '-'): d.version for d in m.distributions()} "
            "| {'package': str(pathlib.Path(ctr_trainer.__file__).parent)}))"
        )
        python = self.checkout / ".venv" / "bin" / "python"
        return json.loads(subprocess.run([python, "-I", "-c", code], capture_output=True, check=True).stdout)

    def files(self):
        return {path: path.lstat().st_mtime_ns for path in (self.checkout / ".venv").rglob("*")}


def _requirements(*extras: str) -> set[tuple[str, str]]:
    """Returns (name, version) that satisfies each requirement of the package, or of these extras only."""
    sections = _requirements_by_extra()
    found = map(Requirement, {each for name in extras or sections for each in sections[name]})
    least = {each.name: [s.version for s in each.specifier if s.operator == ">="] for each in found}
    return {(name, *(versions or ["1"])) for name, versions in least.items()}


def _requirements_by_extra() -> dict[str, list[str]]:
    """Returns the requirements in pyproject.toml by extra ("": what is always needed); extras stand for their lines."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    own = Requirement(extras["test"].pop(0))
    assert own.name == "ctr_trainer"
    extras["test"] += [line for extra in sorted(own.extras) for line in extras[extra]]
    return {"": project["dependencies"], **extras}


def _write_wheel_of_setuptools(directory):
    """Puts the tests' own setuptools into a wheel, since pip builds in an environment of its own."""
    own = importlib.metadata.distribution("setuptools")
    with zipfile.ZipFile(directory / f"setuptools-{own.version}-py3-none-any.whl", "w") as wheel:
        for file in own.files:
            if (
                "__pycache__" not in file.parts
                and ".." not in file.parts
                and file.name not in ("INSTALLER", "REQUESTED")
            ):
                wheel.write(file.locate(), str(file))


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def test_an_installation_continues_after_failures_and_stays_when_finished(checkout):
    half = checkout.checkout / ".venv" / "bin" / "python"  # Of one that was killed while it made the venv.
    half.parent.mkdir(parents=True)
    half.symlink_to(sys.executable)  # There is no pip yet.
    (checkout.checkout / ".venv" / "tensorflow").write_text("unfinished\n")
    right = checkout.take_wheel("numba")
    checkout.add_wheel("numba", "1")
    altered = checkout.wheels / right.name
    with zipfile.ZipFile(altered, "a") as wheel:
        wheel.writestr("numba.py", "print('not what was tested')")
    status, stderr = checkout.install()
    assert status == 1 and "making .venv" in stderr and "DO NOT MATCH THE HASHES" in stderr
    assert not checkout.stamp.exists() and not checkout.built.exists()
    right.rename(altered)
    checkout.fail.touch()
    status, stderr = checkout.install()
    assert status == 1 and "making .venv" not in stderr and "no Horovod today" in stderr
    assert checkout.built.exists() and not checkout.stamp.exists() and not checkout.compiled.exists()
    checkout.fail.unlink()
    status, stderr = checkout.install()
    assert status == 0 and "making .venv" not in stderr
    found = checkout.installed()
    assert found["package"] == str(checkout.checkout / "ctr_trainer") and "ctr-trainer" in found
    assert {"numba", "tensorflow-cpu", "ruff", "mkdocs-material"} <= set(found)
    assert not {"tensorflow", "pyspark"} & set(found)
    assert checkout.built.exists() and checkout.compiled.exists() and checkout.stamp.exists()
    before = checkout.files()
    assert checkout.install() == (0, "")
    assert checkout.files() == before and not checkout.built.exists() and not checkout.compiled.exists()
    own = checkout.checkout / ".venv" / "own"
    own.touch()  # A changed recipe continues in the same venv; another TensorFlow or place gets a new one.
    with open(checkout.checkout / "setup.py", "a") as file:
        file.write("# changed\n")
    wheel = checkout.take_wheel("numba")
    assert checkout.install(HOROVOD_GPU_OPERATIONS="NCCL")[0] == 0  # What is installed is not fetched again.
    assert checkout.built.exists() and own.exists()
    wheel.rename(checkout.wheels / wheel.name)
    checkout.checkout = checkout.checkout.rename(checkout.checkout.with_name("moved"))
    status, stderr = checkout.install(TF="tensorflow[and-cuda]")
    assert status == 0 and "making .venv" in stderr and not (checkout.checkout / ".venv" / "own").exists()
    found = checkout.installed()
    assert found["package"].endswith("moved/ctr_trainer") and "nvidia-ml-py" in found and "tensorflow-cpu" not in found


@pytest.mark.parametrize("minor", range(10, 14))
@pytest.mark.parametrize("extra", ["cpu", "gpu"])
def test_the_constraints_pin_one_release_with_hashes_of_each_requirement(minor, extra):
    environment = {"python_version": f"3.{minor}", "python_full_version": f"3.{minor}.0", "sys_platform": "linux"}
    environment |= {"platform_system": "Linux", "platform_machine": "x86_64", "implementation_name": "cpython"}
    pinned = {}
    for block in re.split(r"\n(?=[a-z])", (ROOT / "constraints.txt").read_text())[1:]:
        requirement = Requirement(block.splitlines()[0].rstrip(" \\"))
        if requirement.marker is None or requirement.marker.evaluate(environment):
            (specifier,) = requirement.specifier
            assert specifier.operator == "==" and "--hash=sha256:" in block, requirement
            assert requirement.name not in pinned, f"two releases of {requirement.name}"
            pinned[requirement.name] = specifier.version
    sections = _requirements_by_extra()
    for requirement in map(Requirement, sum((sections[e] for e in ("", extra, "test", "docs", "install")), [])):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            assert requirement.specifier.contains(pinned[requirement.name.replace("_", "-")]), requirement
