import os
import subprocess
import sys

import pytest

from ctr_trainer.system.installation import build_horovod
from ctr_trainer.system.messages.errors import UserError

XLA = 'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")\n'
CMAKE_LISTS = f"# TF SOURCES\n{XLA.replace('xla_', '')}{XLA}# Create library\n"
LAUNCH = """\
import os, sys
def _run(args):
    raise RuntimeError(args)
def run_commandline():
    args = parse_args()
    _run(args)
"""


def _patch(name, text, path):
    """Patches the text of a file of Horovod's sources; returns its new text."""
    file = path / "horovod" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    build_horovod.patch(path, {name: build_horovod.PATCHES[name]})
    return file.read_text()


@pytest.mark.parametrize(
    ("name", "text", "patched"),
    [
        ("tensorflow/CMakeLists.txt", CMAKE_LISTS, CMAKE_LISTS.replace(XLA, "")),
        (
            "common/gloo/gloo_context.cc",
            "{\n  assert(global_context.IsEnabled());\n\n  device_attr.iface = gloo_iface_;\n}\n",
            "{\n  assert(global_context.IsEnabled());\n  gloo_iface_ = global_context.gloo_iface_;\n\n"
            "  device_attr.iface = gloo_iface_;\n}\n",
        ),
        (
            "tensorflow/__init__.py",
            "    try:\n        _SessionRunHook = tf.train.SessionRunHook\n    except AttributeError:\n",
            "    try:\n        _SessionRunHook = tf.compat.v1.train.SessionRunHook\n    except AttributeError:\n",
        ),
    ],
)
def test_a_patch_changes_its_one_line_and_refuses_other_sources(tmp_path, name, text, patched):
    assert _patch(name, text, tmp_path) == patched
    for other, times in (("", 0), (2 * text, 2)):
        with pytest.raises(UserError, match=rf"{name}: expected .* on exactly one line.* on {times};"):
            _patch(name, other, tmp_path)
        assert (tmp_path / "horovod" / name).read_text() == other


@pytest.mark.parametrize(
    "error, status",
    [("Horovod detected that one or more processes exited with non-zero status", 1), ("no such host", None)],
)
def test_horovodrun_ends_without_a_traceback_where_a_worker_failed(tmp_path, monkeypatch, error, status):
    name = "runner/launch.py"
    names = {"parse_args": lambda: error}
    exec(_patch(name, LAUNCH, tmp_path), names)
    monkeypatch.setenv("PATH", "/usr/bin")
    with pytest.raises(SystemExit if status else RuntimeError) as caught:
        names["run_commandline"]()
    assert getattr(caught.value, "code", None) == status
    with pytest.raises(UserError, match="launch.py: expected .*_run.* on 0;"):
        _patch(name, "    args = parse_args()\n", tmp_path)


def test_the_workers_have_the_programs_next_to_horovodrun_last_on_their_path(tmp_path, monkeypatch):
    """So that `.venv/bin/horovodrun -np 2 run.sh` finds .venv/bin/run.sh, also if .venv is not active."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    names = {"parse_args": lambda: None}
    exec(_patch("runner/launch.py", LAUNCH, tmp_path), names)
    with pytest.raises(RuntimeError):
        names["run_commandline"]()
    assert os.environ["PATH"] == f"/usr/bin:/bin:{os.path.dirname(sys.executable)}"


def test_what_is_built_is_known_without_importing_tensorflow(tmp_path):
    asks = "def {}_built(verbose=False):\n    raise ImportError\n"
    names = {}
    exec(_patch("common/util.py", "".join(map(asks.format, ("mpi", "gloo", "nccl"))), tmp_path), names)
    assert (names["mpi_built"](), names["gloo_built"](verbose=True)) == (False, True)
    with pytest.raises(ImportError):
        names["nccl_built"]()


def test_the_cache_is_the_users_and_names_all_that_a_wheel_depends_on(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    keys = {
        build_horovod.cache_directory("tensorflow-cpu", "2.21.0", ""),
        build_horovod.cache_directory("tensorflow-cpu", "2.20.0", ""),
        build_horovod.cache_directory("tensorflow", "2.21.0", ""),
        build_horovod.cache_directory("tensorflow", "2.21.0", "NCCL"),
    }
    assert len(keys) == 4
    for key in keys:
        assert key.parent == tmp_path / "ctr_trainer" / "wheels"
        assert key.name.startswith(f"horovod-0.28.1_patched6_{sys.implementation.cache_tag}")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    key = build_horovod.cache_directory("tensorflow-cpu", "2.21.0", "")
    assert key.parent == tmp_path / ".cache" / "ctr_trainer" / "wheels"


def test_what_older_compilers_included_by_themselves_is_included(tmp_path, monkeypatch):
    monkeypatch.setattr(build_horovod, "_pip", lambda *args: None)
    monkeypatch.setenv("CXXFLAGS", "-DERROR=std::logic_error")
    flags = build_horovod._build_environment(tmp_path, "")["CXXFLAGS"].split()
    (tmp_path / "types.cc").write_text('uint8_t byte; ERROR error("");\n')
    subprocess.run(["c++", "-fsyntax-only", *flags, tmp_path / "types.cc"], check=True, timeout=60)


def test_a_failed_compilation_names_its_first_error_and_its_log(tmp_path, monkeypatch):
    of_pip = ["Building wheel: finished with status 'error'", "  error: subprocess-exited-with-error"]
    output = [*of_pip, "[ 10%] Building", "mpi_ops.cc:7:1: error: no member named 'x'", *["Traceback"] * 99]
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\n" + "".join(f'echo "{line}"\n' for line in output) + "exit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    log = tmp_path / "build.log"
    with pytest.raises(UserError, match="compiling Horovod failed with status 1") as caught:
        build_horovod._compile(["horovod"], None, log)
    assert "first error: mpi_ops.cc:7:1: error: no member named 'x'" in str(caught.value)
    assert str(log) in str(caught.value)
    assert log.read_text().splitlines() == output


def test_an_installed_horovod_without_what_is_needed_is_refused(tmp_path, monkeypatch):
    for module, text in (
        ("__init__", ""),
        ("runner/launch", ""),
        ("tensorflow", "def gloo_built():\n    return True\ndef nccl_built():\n    return 0\n"),
    ):
        path = tmp_path / "horovod" / f"{module}.py"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    build_horovod.check_installed("")
    with pytest.raises(UserError, match="the installed Horovod lacks nccl"):
        build_horovod.check_installed("NCCL")
    path.write_text("raise ImportError('no TensorFlow')")
    with pytest.raises(UserError, match="(?s)checking Horovod failed with status 1: .*no TensorFlow"):
        build_horovod.check_installed("")


class Steps:
    """Stands in for the slow steps of main() and writes down which were taken."""

    def __init__(self, monkeypatch, tmp_path):
        self.taken = []
        self.bad = set()
        self.directory = tmp_path / "wheels"
        monkeypatch.setattr(sys, "argv", ["build_horovod"])
        monkeypatch.delenv("HOROVOD_GPU_OPERATIONS", raising=False)
        monkeypatch.setattr(build_horovod.signal, "signal", lambda *_: None)
        monkeypatch.setattr(build_horovod, "find_tensorflow", lambda: ("tensorflow-cpu", "2.21.0"))
        monkeypatch.setattr(build_horovod, "cache_directory", lambda *_: self.directory)
        monkeypatch.setattr(build_horovod, "check_tools", lambda: None)
        monkeypatch.setattr(build_horovod, "build_wheel", self.build)
        monkeypatch.setattr(build_horovod, "install", self.install)
        monkeypatch.setattr(build_horovod, "check_installed", self.check)

    def add_wheel(self, content):
        self.directory.mkdir(exist_ok=True)
        path = self.directory / "horovod-0.28.1-any.whl"
        path.write_text(content)
        return path

    def build(self, destination, gpu_operations):
        self.taken.append("build")
        return self.add_wheel("built")

    def install(self, wheel):
        self.installed = wheel.read_text()
        self.taken.append(f"install {self.installed}")

    def check(self, gpu_operations):
        if self.installed in self.bad:
            raise UserError("the installed Horovod lacks TensorFlow")


@pytest.fixture
def steps(monkeypatch, tmp_path):
    return Steps(monkeypatch, tmp_path)


def test_a_wheel_is_built_once_and_again_if_it_does_not_work(steps, capsys):
    assert build_horovod.main() == 0
    assert build_horovod.main() == 0
    assert steps.taken == ["build", "install built", "install built"]
    steps.taken.clear()
    steps.add_wheel("stale")
    steps.bad.add("stale")
    assert build_horovod.main() == 0
    assert steps.taken == ["install stale", "build", "install built"]
    steps.bad.add("built")
    assert build_horovod.main() == 1
    assert "lacks TensorFlow" in capsys.readouterr().err


def test_it_imports_nothing_that_has_to_be_installed(tmp_path):
    # -S: without site-packages; -P is not in Python 3.10, so the package is found by a path of its own.
    package = build_horovod.__file__.removesuffix("/ctr_trainer/system/installation/build_horovod.py")
    code = f"import sys; sys.path.insert(0, {package!r}); import ctr_trainer.system.installation.build_horovod"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], cwd=tmp_path, check=True, timeout=60)
