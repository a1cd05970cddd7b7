"""What the sources of Horovod's last release need for the TensorFlow of today, and for jobs of several hosts."""

import pathlib

from ctr_trainer.system.messages.errors import UserError

VERSION = "0.28.1"
# Part of a cached wheel's key: another one for other patches.
NAME = "patched5"
UNUSED_SOURCE = "xla_mpi_ops.cc"
# The first line of `GlooContext::InitializeForProcessSet`, which uses `gloo_iface_` and never sets it.
INTERFACE_UNSET = "assert(global_context.IsEnabled());"
HOOK_DROPPED = "_SessionRunHook = tf.train.SessionRunHook"
# All that `horovodrun` does.
RUN = "    _run(args)"
RUN_QUIETLY = """\
    try:
        _run(args)
    except RuntimeError as error:
        if 'one or more processes exited' not in str(error):
            raise
        sys.exit(1)  # Which process it was, and its status, was said.
"""
# What this build has, by the function that asks.
BUILT = {"def mpi_built(verbose=False):": False, "def gloo_built(verbose=False):": True}


def patch(source: pathlib.Path) -> None:
    """Patches the sources in a directory.

    Raises:
      UserError: a line is not there exactly once, so these are not the sources that the patches were made for.
    """
    drop_unused_source(source / "horovod" / "tensorflow" / "CMakeLists.txt")
    set_interface(source / "horovod" / "common" / "gloo" / "gloo_context.cc")
    find_session_run_hook(source / "horovod" / "tensorflow" / "__init__.py")
    end_without_traceback(source / "horovod" / "runner" / "launch.py")
    answer_what_is_built(source / "horovod" / "common" / "util.py")


def drop_unused_source(cmake_lists: pathlib.Path) -> None:
    """Takes the line that adds `xla_mpi_ops.cc` out of CMakeLists.txt.

    It no longer compiles, and is not needed without `HOROVOD_ENABLE_XLA_OPS`.
    """
    _replace_line(cmake_lists, UNUSED_SOURCE, "")


def set_interface(gloo_context: pathlib.Path) -> None:
    """Has `gloo_context.cc` connect the workers of a process set by the interface of `horovodrun --network-interface`.

    Horovod takes this interface for the first connection of the workers only. Each later one listens at the address
    that the host's own name leads to. On Debian that is 127.0.1.1, which no other host reaches, so a job of several
    hosts dies at its start.
    """
    _replace_line(gloo_context, INTERFACE_UNSET, f"  {INTERFACE_UNSET}\n  gloo_iface_ = global_context.gloo_iface_;\n")


def find_session_run_hook(tensorflow_init: pathlib.Path) -> None:
    """Has `tensorflow/__init__.py` look for `SessionRunHook` in `tf.compat.v1`.

    `tf.train` has none since `tf.estimator` went, and without it Horovod defines no `BroadcastGlobalVariablesHook`.
    """
    line = HOOK_DROPPED.replace("tf.train", "tf.compat.v1.train")
    _replace_line(tensorflow_init, HOOK_DROPPED, f"        {line}\n")


def end_without_traceback(launch: pathlib.Path) -> None:
    """Has `runner/launch.py` end with status 1 where a worker failed, below the lines that name the worker.

    It ends with a traceback of its own otherwise.
    """
    _replace_line(launch, RUN, RUN_QUIETLY)


def answer_what_is_built(util: pathlib.Path) -> None:
    """Has `common/util.py` know that it was built with Gloo and without MPI, as `build_horovod` has it.

    Otherwise `horovodrun` imports TensorFlow twice to ask, before it starts any worker: some seconds of each job.
    """
    for function, is_built in BUILT.items():
        _replace_line(util, function, f"{function}\n    return {is_built}\n")


def _replace_line(path: pathlib.Path, marker: str, replacement: str) -> None:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    found = sum(marker in line for line in lines)
    if found != 1:
        raise UserError(
            f"{path}: expected {marker} on exactly one line, found it on {found}; these are not the sources of Horovod "
            f"{VERSION} that this patch is for"
        )
    path.write_text("".join(replacement if marker in line else line for line in lines), encoding="utf-8")
