"""Patches the sources of Horovod's last release for current TensorFlow versions and for jobs on several hosts."""

import pathlib

from ctr_trainer.system.messages.errors import UserError

VERSION = "0.28.1"
# Part of the key of a cached wheel: change it with the patches.
NAME = "patched5"
UNUSED_SOURCE = "xla_mpi_ops.cc"
# The first line of `GlooContext::InitializeForProcessSet`, which uses `gloo_iface_` and never sets it.
INTERFACE_UNSET = "assert(global_context.IsEnabled());"
HOOK_DROPPED = "_SessionRunHook = tf.train.SessionRunHook"
# The line of `horovodrun` that runs the job.
RUN = "    _run(args)"
RUN_QUIETLY = """\
    try:
        _run(args)
    except RuntimeError as error:
        if 'one or more processes exited' not in str(error):
            raise
        sys.exit(1)  # The lines above name the process and its status.
"""
# The answers of the functions that report what Horovod was built with.
BUILT = {"def mpi_built(verbose=False):": False, "def gloo_built(verbose=False):": True}


def patch(source: pathlib.Path) -> None:
    """Patches the sources in a directory.

    Raises:
      UserError: a line does not occur exactly once, so these are not the sources that the patches were made for.
    """
    drop_unused_source(source / "horovod" / "tensorflow" / "CMakeLists.txt")
    set_interface(source / "horovod" / "common" / "gloo" / "gloo_context.cc")
    find_session_run_hook(source / "horovod" / "tensorflow" / "__init__.py")
    end_without_traceback(source / "horovod" / "runner" / "launch.py")
    answer_what_is_built(source / "horovod" / "common" / "util.py")


def drop_unused_source(cmake_lists: pathlib.Path) -> None:
    """Removes `xla_mpi_ops.cc` from CMakeLists.txt.

    This source no longer compiles, and is needed only for `HOROVOD_ENABLE_XLA_OPS`.
    """
    _replace_line(cmake_lists, UNUSED_SOURCE, "")


def set_interface(gloo_context: pathlib.Path) -> None:
    """Makes the workers of a process set connect over the interface of `horovodrun --network-interface`.

    Horovod uses this interface for the workers' first connection only. For later connections it listens at the address
    that the host's own name resolves to. On Debian this is 127.0.1.1, which other hosts cannot reach, so a job on
    several hosts fails at its start.
    """
    _replace_line(gloo_context, INTERFACE_UNSET, f"  {INTERFACE_UNSET}\n  gloo_iface_ = global_context.gloo_iface_;\n")


def find_session_run_hook(tensorflow_init: pathlib.Path) -> None:
    """Makes `tensorflow/__init__.py` look for `SessionRunHook` in `tf.compat.v1`.

    Since TensorFlow removed `tf.estimator`, `tf.train` has no `SessionRunHook`, and without it Horovod does not define
    `BroadcastGlobalVariablesHook`.
    """
    line = HOOK_DROPPED.replace("tf.train", "tf.compat.v1.train")
    _replace_line(tensorflow_init, HOOK_DROPPED, f"        {line}\n")


def end_without_traceback(launch: pathlib.Path) -> None:
    """Makes `horovodrun` exit with status 1 if a worker failed, after the lines that name the worker.

    Unpatched, it also prints a traceback of its own code.
    """
    _replace_line(launch, RUN, RUN_QUIETLY)


def answer_what_is_built(util: pathlib.Path) -> None:
    """Makes `common/util.py` report Gloo and no MPI, as `build_horovod` builds Horovod.

    Unpatched, `horovodrun` imports TensorFlow twice to find out, which delays each job by some seconds.
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
