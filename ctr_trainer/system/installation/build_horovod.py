"""Builds and installs Horovod for the TensorFlow of this Python.

Run it as `python -m ctr_trainer.system.installation.build_horovod`.

Horovod's last release predates current TensorFlow versions, so its sources are patched first, see `PATCHES`.

The built wheel is kept in the user's cache, in a directory whose name contains everything that the wheel depends on.
The next checkout or virtual environment on this machine installs the wheel in seconds.

The build needs a C++ compiler, make, and network access for the sources and for CMake, which it gets from PyPI. This
module needs only the standard library, so it runs before anything is installed.

Environment:
  HOROVOD_GPU_OPERATIONS: `NCCL` for GPUs; unset for CPU and Gloo. Horovod's other variables (`HOROVOD_NCCL_HOME`, ...)
    are passed to its build.
  XDG_CACHE_HOME: directory that contains the cache, `ctr_trainer/wheels`; default `~/.cache`.
"""

import argparse
import functools
import importlib.metadata
import os
import pathlib
import re
import shutil
import signal
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping, Sequence

from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import child, hardware

VERSION = "0.28.1"
# Part of the key of a cached wheel. Change it whenever the patches change.
PATCHED = "patched6"
# The patches of each file: a text that exactly one line contains, and the lines that replace this line.
PATCHES: dict[str, dict[str, str]] = {
    # This source file no longer compiles, and is needed only for `HOROVOD_ENABLE_XLA_OPS`.
    "tensorflow/CMakeLists.txt": {"xla_mpi_ops.cc": ""},
    # Makes the workers of a process set connect over the interface of `horovodrun --network-interface`. Unpatched,
    # Horovod uses this interface only for the workers' first connection, because
    # `GlooContext::InitializeForProcessSet` uses `gloo_iface_` but never sets it. For later connections, Horovod
    # listens at the address to which the host's own name resolves. On Debian, this is 127.0.1.1, which other hosts
    # cannot reach, so a job on several hosts fails at its start.
    "common/gloo/gloo_context.cc": {
        "assert(global_context.IsEnabled());": """\
  assert(global_context.IsEnabled());
  gloo_iface_ = global_context.gloo_iface_;
""",
    },
    # Since TensorFlow removed `tf.estimator`, `tf.train` has no `SessionRunHook`, without which Horovod does not define
    # `BroadcastGlobalVariablesHook`.
    "tensorflow/__init__.py": {
        "_SessionRunHook = tf.train.SessionRunHook": """\
        _SessionRunHook = tf.compat.v1.train.SessionRunHook
""",
    },
    # Puts the directory of `horovodrun` last on the PATH of the workers, who then find `run.sh` and what else is
    # installed there even if the virtual environment is not active.
    #
    # Makes `horovodrun` end with status 1 if a worker has failed, after printing the lines that name the worker.
    # Unpatched, it also prints a traceback of its own code.
    "runner/launch.py": {
        "    args = parse_args()": """\
    os.environ['PATH'] = os.pathsep.join([os.environ.get('PATH', os.defpath), os.path.dirname(sys.executable)])
    args = parse_args()
""",
        "    _run(args)": """\
    try:
        _run(args)
    except RuntimeError as error:
        if 'one or more processes exited' not in str(error):
            raise
        sys.exit(1)  # The lines above name the process and its status.
""",
    },
    # Reports that Horovod was built with Gloo and without MPI, which is true for `build_horovod`. Unpatched,
    # `horovodrun` imports TensorFlow twice to determine this, which delays each job by some seconds.
    "common/util.py": {
        "def mpi_built(verbose=False):": "def mpi_built(verbose=False):\n    return False\n",
        "def gloo_built(verbose=False):": "def gloo_built(verbose=False):\n    return True\n",
    },
}
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
TENSORFLOWS = ("tensorflow-cpu", "tensorflow", "tf-nightly")
DOWNLOAD_TIMEOUT_S = 900
BUILD_TIMEOUT_S = 3600
CHECK_TIMEOUT_S = 600

_HERE = pathlib.Path(__file__).parent
_INSTALL_HINT = (
    "Install one, then run this again:\n"
    "  Debian, Ubuntu:  sudo apt-get install -y {debian}\n"
    "  Fedora, RHEL:    sudo dnf install -y {fedora}"
)


def patch(source: pathlib.Path, patches: Mapping[str, Mapping[str, str]] = PATCHES) -> None:
    """Patches the sources in a directory.

    Raises UserError: a line does not occur exactly once, so these are not the sources for which the patches were made.
    """
    for name, replacements in patches.items():
        path = source / "horovod" / name
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        for marker, replacement in replacements.items():
            at = [number for number, line in enumerate(lines) if marker in line]
            if len(at) != 1:
                raise UserError(
                    f"{path}: expected {marker} on exactly one line, found it on {len(at)}; these are not the sources "
                    f"of Horovod {VERSION} that this patch is for"
                )
            lines[at[0]] = replacement
        path.write_text("".join(lines), encoding="utf-8")


def _say(text: object) -> None:
    print(f"build_horovod: {text}", file=sys.stderr, flush=True)


def check_tools() -> None:
    """Checks for the programs that the build needs and that pip cannot install.

    Raises UserError: a program is missing; the message contains the command that installs it.
    """
    compilers = [os.environ["CXX"].split()[0]] if os.environ.get("CXX", "").strip() else ["c++", "g++", "clang++"]
    for what, programs, debian, fedora in [
        ("C++ compiler", compilers, "g++", "gcc-c++"),
        ("make", ["make", "gmake"], "make", "make"),
    ]:
        if not any(shutil.which(program) for program in programs):
            raise UserError(
                f"no {what} to build Horovod with: looked for {', '.join(programs)} on PATH. "
                + _INSTALL_HINT.format(debian=debian, fedora=fedora)
            )


def find_tensorflow() -> tuple[str, str]:
    """Returns (distribution, version) of this Python's TensorFlow, such as `("tensorflow-cpu", "2.21.0")`."""
    for name in TENSORFLOWS:
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise UserError(
        f"{sys.executable} has no TensorFlow to build Horovod for. Install it first: "
        "pip install 'ctr_trainer[cpu]', or 'ctr_trainer[gpu]' for GPUs"
    )


def cache_directory(tensorflow: str, tensorflow_version: str, gpu_operations: str) -> pathlib.Path:
    """Returns the directory of the cached wheel. Its name contains everything that a build depends on."""
    root = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    python = f"{sys.implementation.cache_tag}{getattr(sys, 'abiflags', '')}"
    parts = [f"horovod-{VERSION}", PATCHED, python, sysconfig.get_platform()]
    parts += [f"{tensorflow}-{tensorflow_version}", gpu_operations or "cpu"]
    return root / "ctr_trainer" / "wheels" / "_".join(re.sub(r"[^\w.+-]", "-", part) for part in parts)


def _pip(
    what: str,
    timeout_s: float,
    *arguments: object,
    env: Mapping[str, str] | None = None,
    show: Callable[[str], object] | None = None,
) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    child.run_command([*pip, *arguments], what, timeout_s, env=env, show=show, merge_stderr=True)


def _build_environment(tools: pathlib.Path, gpu_operations: str) -> dict[str, str]:
    """Installs pip's build tools and CMake below `tools`. Returns the environment of the build."""
    options = ["--target", tools, "--require-hashes", "--requirement", _HERE / "build_tools.txt"]
    _pip("installing the build tools", DOWNLOAD_TIMEOUT_S, "install", *options)
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    env = dict(os.environ)
    # If a `make` has called this program, the build must not use its job server.
    for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL"):
        env.pop(name, None)
    env.update(
        PYTHONPATH=str(tools),
        # The program itself, because the Python script that starts it would need its package on PYTHONPATH.
        HOROVOD_CMAKE=str(tools / "cmake" / "data" / "bin" / "cmake"),
        HOROVOD_WITH_TENSORFLOW="1",
        HOROVOD_WITH_GLOO="1",
        HOROVOD_WITHOUT_MPI="1",
        HOROVOD_WITHOUT_PYTORCH="1",
        HOROVOD_WITHOUT_MXNET="1",
        # For GCC 16, whose other headers no longer include these, and which refuses unused templates of flatbuffers.
        CXXFLAGS=f"-include cstdint -include stdexcept -Wno-template-body {env.get('CXXFLAGS', '')}",
        # A compiler process needs up to 2 GiB for TensorFlow's headers.
        MAKEFLAGS=f"-j{max(1, min(hardware.usable_cores(), memory_gib // 2))}",
        TF_CPP_MIN_LOG_LEVEL="3",
    )
    env.pop("HOROVOD_GPU_OPERATIONS", None)
    if gpu_operations:
        env["HOROVOD_GPU_OPERATIONS"] = gpu_operations
    return env


def _compile(arguments: Sequence[object], env: Mapping[str, str], log: pathlib.Path) -> None:
    """Runs `pip wheel`, and writes its output to a log file. A UserError contains the first error in the log."""
    with open(log, "w", encoding="utf-8") as file:
        try:
            show = functools.partial(print, file=file, flush=True)
            _pip("compiling Horovod", BUILD_TIMEOUT_S, "wheel", *arguments, env=env, show=show)
        except UserError as error:
            lines = log.read_text(encoding="utf-8").splitlines()
            first = next((line for line in lines if re.search("(: |fatal |cmake )error", line, re.IGNORECASE)), "none")
            raise UserError(f"{error}\n  first error: {first.strip()}\n  all of its output: {log}") from error


def build_wheel(destination: pathlib.Path, gpu_operations: str) -> pathlib.Path:
    """Downloads, patches and compiles Horovod. Returns the path of the wheel, a new file in `destination`."""
    with tempfile.TemporaryDirectory(prefix="horovod-") as temporary:
        scratch = pathlib.Path(temporary)
        env = _build_environment(scratch / "tools", gpu_operations)
        requirement = scratch / "requirements.txt"
        requirement.write_text(f"horovod=={VERSION} --hash=sha256:{SDIST_SHA256}\n", encoding="utf-8")
        _say(f"downloading Horovod {VERSION}")
        options = ["--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--dest", scratch]
        _pip("downloading Horovod", DOWNLOAD_TIMEOUT_S, "download", *options, "--requirement", requirement, env=env)
        shutil.unpack_archive(next(scratch.glob("horovod-*.tar.gz")), scratch)
        source = scratch / f"horovod-{VERSION}"
        patch(source)
        _say(f"compiling Horovod with make {env['MAKEFLAGS']}; about two minutes on two cores")
        options = ["--no-deps", "--no-build-isolation", "--no-cache-dir", "--wheel-dir", scratch / "wheel"]
        destination.mkdir(parents=True, exist_ok=True)
        _compile([*options, source], env, destination / "build.log")
        built = next((scratch / "wheel").glob("horovod-*.whl"))
        # Copy, then rename, so that a concurrent build sees a complete wheel or none.
        with tempfile.TemporaryDirectory(dir=destination, prefix=".") as copies:
            copy = shutil.copy(built, copies)
            os.replace(copy, destination / built.name)
        return destination / built.name


def check_installed(gpu_operations: str) -> None:
    """Raises UserError unless the installed Horovod works, and has Gloo and the requested GPU operations."""
    wanted = ["gloo", *([gpu_operations.lower()] if gpu_operations else [])]
    code = (
        "import horovod.runner.launch, horovod.tensorflow as hvd; "
        f"print('lacks:', *(name for name in {wanted} if not getattr(hvd, name + '_built')()))"
    )
    ask, env = [sys.executable, "-c", code], dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3")
    lines = child.run_command(ask, "checking Horovod", CHECK_TIMEOUT_S, env=env, merge_stderr=True)
    lacking = next(line for line in lines if line.startswith("lacks:")).split()[1:]
    if lacking:
        raise UserError(f"the installed Horovod lacks {', '.join(lacking)}")


def install(wheel: pathlib.Path) -> None:
    """Installs the wheel and its dependencies into this Python."""
    _pip("installing Horovod", DOWNLOAD_TIMEOUT_S, "install", "--force-reinstall", "--no-deps", wheel)
    # horovodrun imports distutils, which Python 3.12 removed and setuptools provides.
    _pip("installing Horovod's dependencies", DOWNLOAD_TIMEOUT_S, "install", wheel, "setuptools")


def main() -> int:
    """Installs Horovod, from the cache if possible, and returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m ctr_trainer.system.installation.build_horovod", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--check_tools", action="store_true", help="only check for the compiler and make")
    only_check = parser.parse_args().check_tools
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    gpu_operations = os.environ.get("HOROVOD_GPU_OPERATIONS", "").strip()
    try:
        if only_check:
            check_tools()
            return 0
        tensorflow, version = find_tensorflow()
        directory = cache_directory(tensorflow, version, gpu_operations)
        cached = next(directory.glob("horovod-*.whl"), None)
        if cached is not None:
            _say(f"installing {cached}")
            try:
                install(cached)
                check_installed(gpu_operations)
                return 0
            except UserError as error:
                _say(f"{error}\nthe cached wheel does not work here; building it again")
        check_tools()
        install(build_wheel(directory, gpu_operations))
        check_installed(gpu_operations)
        _say(f"Horovod {VERSION} is installed for {tensorflow} {version}; its wheel is kept in {directory}")
        return 0
    except UserError as error:
        _say(error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
