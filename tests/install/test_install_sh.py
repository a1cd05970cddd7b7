"""scripts/install.sh in a copy of the checkout, on a PATH that holds only what a test puts there."""

import pathlib
import shutil
import subprocess
import sys

import pytest

# What `scripts/install.sh` runs before anything is installed.
MODULES_OF_INSTALLATION = (
    "messages/errors",
    "messages/exit_status",
    "processes/command",
    "installation/horovod_patches",
    "installation/build_horovod",
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
        for tool in SHELL_TOOLS:
            self.add_program(tool, shutil.which(tool))
        self.checkout = directory / "checkout"
        for name in (
            "scripts/install.sh",
            "setup.py",
            *(f"ctr_trainer/{m}.py" for m in ("__init__", *MODULES_OF_INSTALLATION)),
        ):
            target = self.checkout / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
        self.log = directory / "log"
        self.fail = directory / "fail"

    def add_program(self, name, target):
        (self.bin / name).symlink_to(target)

    def add_python(self, name, minor):
        path = self.bin / name
        text = FAKE_PYTHON.replace("MINOR", str(minor)).replace("BASE", str(path))
        path.write_text(text.replace("LOG", str(self.log)).replace("FAIL", str(self.fail)))
        path.chmod(0o755)

    def install(self, **variables):
        """-> (status, stderr, what the fake Python did: `venv`, `pip`, `ctr_trainer.installation.build_horovod`)."""
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


def assert_refused(machine, expected, **variables):
    status, stderr, _ = machine.install(**variables)
    assert status == 1
    for text in expected:
        assert text in stderr
    assert not (machine.checkout / ".venv").exists()


def test_without_python_the_command_that_installs_it_is_named(machine):
    assert_refused(machine, ["no Python 3.10 or later", "sudo apt-get install -y python3", "sudo dnf install"])


def test_an_old_python_is_named_with_its_version(machine):
    machine.add_python("python3", 9)
    assert_refused(machine, ["no Python 3.10 or later", "python3 is Python 3.9.1", "sudo apt-get install -y python3"])


def test_an_old_python_that_was_asked_for_is_not_replaced_by_another(machine):
    machine.add_python("python3", 11)
    machine.add_python("mine", 8)
    assert_refused(machine, ["looked for mine on PATH", "mine is Python 3.8.1"], PYTHON="mine")


def test_a_python_without_venv_is_named_with_its_package(machine):
    machine.add_python("python3", 11)
    machine.fail.write_text("import ensurepip, venv")
    assert_refused(machine, ["ensurepip and venv are missing", "sudo apt-get install -y python3.11-venv"])


def test_without_a_compiler_the_command_that_installs_it_is_named(machine):
    machine.add_program("python3", sys.executable)
    machine.add_program("make", "/bin/true")
    assert_refused(machine, ["no C++ compiler", "c++, g++, clang++", "sudo apt-get install -y g++", "gcc-c++"])


def test_a_compiler_that_cxx_names_and_is_not_there_is_named(machine):
    machine.add_program("python3", sys.executable)
    machine.add_program("c++", "/bin/true")
    assert_refused(machine, ["no C++ compiler", "looked for icpx on PATH"], CXX="icpx -O2")


def test_without_make_the_command_that_installs_it_is_named(machine):
    machine.add_program("python3", sys.executable)
    machine.add_program("c++", "/bin/true")
    assert_refused(machine, ["no make", "sudo apt-get install -y make"])


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
    for name, minor in names.items():
        machine.add_python(name, minor)
    status, stderr, _ = machine.install()
    assert status == 0
    assert f"with Python {chosen}" in stderr
    assert ("newer than what this was tested with" in stderr) == (chosen == "3.14.1")


def test_a_finished_installation_is_left_alone(machine):
    machine.add_python("python3", 11)
    assert machine.install()[::2] == (0, ["venv", "pip", "pip", "ctr_trainer.installation.build_horovod"])
    assert machine.install() == (0, "", [])


@pytest.mark.parametrize(
    "at, goes_on_with",
    [
        ("--upgrade pip", ["pip", "pip", "ctr_trainer.installation.build_horovod"]),
        ("--editable", ["pip", "pip", "ctr_trainer.installation.build_horovod"]),
        ("-m ctr_trainer.installation.build_horovod", ["pip", "pip", "ctr_trainer.installation.build_horovod"]),
        ("-m venv", ["venv", "pip", "pip", "ctr_trainer.installation.build_horovod"]),
    ],
)
def test_a_failed_installation_leaves_no_stamp_and_goes_on(machine, at, goes_on_with):
    machine.add_python("python3", 11)
    (machine.checkout / ".venv").mkdir()
    machine.fail.write_text(at)
    if at == "-m ctr_trainer.installation.build_horovod":
        # Only the build, not the check for tools that comes before everything.
        fake = machine.bin / "python3"
        fake.write_text(fake.read_text().replace("case ", '[[ "$*" == *--check_tools ]] && exit\ncase ', 1))
    assert machine.install()[0] == 1
    assert not machine.stamp.exists()
    machine.fail.unlink()
    assert machine.install()[::2] == (0, goes_on_with)
    assert machine.stamp.exists()


def test_a_venv_of_others_is_never_emptied(machine):
    machine.add_python("python3", 11)
    theirs = machine.checkout / ".venv" / "lib" / "thesis.py"
    theirs.parent.mkdir(parents=True)
    theirs.touch()
    status, stderr, asked = machine.install()
    assert (status, asked) == (1, []) and theirs.exists()
    assert ".venv is there and was not made by this script" in stderr and "Move it away" in stderr


def test_the_venv_of_another_checkout_behind_a_link_is_never_emptied(machine, tmp_path):
    machine.add_python("python3", 11)
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
        ".venv", "build", "ctr_trainer", "dist", "scripts", "setup.py", "site",
    ]  # fmt: skip
    assert not (machine.checkout / "ctr_trainer" / "__pycache__").exists()
    (machine.checkout / ".venv" / "tensorflow").touch()  # as the installation leaves it
    (machine.checkout / "build" / "house").rename(machine.checkout / "build" / "lib")
    (machine.checkout / "dist" / "mine.txt").rename(machine.checkout / "dist" / "mine.whl")
    (machine.checkout / "site" / "notes.txt").rename(machine.checkout / "site" / "index.html")
    assert clean().returncode == 0
    assert sorted(path.name for path in machine.checkout.iterdir()) == ["ctr_trainer", "scripts", "setup.py"]


def test_another_tensorflow_gets_a_venv_of_its_own(machine):
    machine.add_python("python3", 11)
    machine.install()
    assert machine.install(TF="tensorflow[and-cuda]")[2][0] == "venv"
    assert ".[gpu,dev,docs]" in machine.log.read_text()
    assert machine.install(TF="tensorflow-cpu==2.20.0")[2][0] == "venv"
    assert ".[dev,docs] tensorflow-cpu==2.20.0" in machine.log.read_text()


def test_other_gpu_operations_and_another_setup_py_go_on_in_the_same_venv(machine):
    machine.add_python("python3", 11)
    machine.install()
    again = ["pip", "pip", "ctr_trainer.installation.build_horovod"]
    assert machine.install(HOROVOD_GPU_OPERATIONS="NCCL")[2] == again
    with open(machine.checkout / "setup.py", "a") as file:
        file.write("# changed\n")
    assert machine.install(HOROVOD_GPU_OPERATIONS="NCCL")[2] == again


def test_a_change_that_failed_half_way_does_not_pass_for_what_stood_before(machine):
    machine.add_python("python3", 11)
    machine.install()
    machine.fail.write_text("--editable")
    assert machine.install(HOROVOD_GPU_OPERATIONS="NCCL")[0] == 1
    machine.fail.unlink()
    assert machine.install()[2] == ["pip", "pip", "ctr_trainer.installation.build_horovod"]


def test_another_python_gets_a_venv_of_its_own(machine):
    machine.add_python("python3", 11)
    machine.add_python("python3.12", 12)
    machine.install()
    assert machine.install(PYTHON="python3.12")[2][0] == "venv"


def test_the_venv_of_a_real_python_is_gone_on_with(machine):
    for name, target in (("python3", sys.executable), ("c++", "/bin/true"), ("make", "/bin/true")):
        machine.add_program(name, target)
    # Without an index pip cannot get the package's requirements, and the installation ends there.
    offline = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null"}
    status, stderr, _ = machine.install(**offline)
    assert status == 1 and "making .venv" in stderr and "pip could not install" in stderr
    status, stderr, _ = machine.install(**offline)
    assert status == 1 and "making .venv" not in stderr and "pip could not install" in stderr


def test_a_moved_checkout_is_installed_anew(machine):
    machine.add_python("python3", 11)
    machine.install()
    machine.checkout = machine.checkout.rename(machine.checkout.with_name("moved"))
    assert machine.install()[2][0] == "venv"
