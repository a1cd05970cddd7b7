"""Patches the sources of Horovod's last release for current TensorFlow versions and for jobs on several hosts."""

import pathlib
from collections.abc import Mapping

from ctr_trainer.system.messages.errors import UserError

VERSION = "0.28.1"
# Part of the key of a cached wheel. Change it whenever the patches change.
NAME = "patched6"
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


def patch(source: pathlib.Path, patches: Mapping[str, Mapping[str, str]] = PATCHES) -> None:
    """Patches the sources in a directory.

    Raises UserError: a line does not occur exactly once, so these are not the sources for which the patches were made.
    """
    for name, replacements in patches.items():
        for marker, replacement in replacements.items():
            _replace_line(source / "horovod" / name, marker, replacement)


def _replace_line(path: pathlib.Path, marker: str, replacement: str) -> None:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    found = sum(marker in line for line in lines)
    if found != 1:
        raise UserError(
            f"{path}: expected {marker} on exactly one line, found it on {found}; these are not the sources of Horovod "
            f"{VERSION} that this patch is for"
        )
    path.write_text("".join(replacement if marker in line else line for line in lines), encoding="utf-8")
