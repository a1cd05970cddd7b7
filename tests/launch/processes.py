"""The processes of a running `launch`, for tests and benchmarks."""

import contextlib
import pathlib

import psutil

from ctr_trainer.ranks.notices import ATTEMPT


def of_job(model_dir: pathlib.Path, *module: str) -> list[psutil.Process]:
    """Returns the processes that the launcher of a model directory has started.

    Args:
      model_dir: the model directory.
      module: if given, only the processes of `python -m MODULE`, with the words that follow.
    """
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            is_ours = ATTEMPT in process.environ() and str(model_dir) in " ".join(line)
            first = 4 if line[1:2] == ["-IS"] else 2  # Python runs the program `warm_python` by this option.
            if is_ours and line[first : first + len(module)] == [*module]:
                found.append(process)
    return found


def with_variable(name: str, value: str) -> list[psutil.Process]:
    """Returns the running processes with this variable in their environment, such as horovodrun's own children."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(name) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def state(process: psutil.Process) -> str:
    """Returns what is known of a process that should have ended: what it is, and where each of its threads waits."""
    try:
        command, threads = " ".join(process.cmdline()[:6])[:300], pathlib.Path(f"/proc/{process.pid}/task")
        waits = [f"{each.name} {(each / 'wchan').read_text()}" for each in sorted(threads.glob("*"))]
        return f"{process.pid} of {process.ppid()}, {process.status()}: {command}; threads: {', '.join(waits)}"
    except (psutil.Error, OSError) as error:
        return f"{process.pid}: {error}"


def workers(model_dir: pathlib.Path) -> dict[tuple[int, int], psutil.Process]:
    """Returns the workers by rank and start; those of a later start wait until the ones before them have ended."""
    found = {}
    for process in of_job(model_dir, "ctr_trainer.launch.worker"):
        with contextlib.suppress(psutil.Error):
            environment = process.environ()
            rank, start = environment["HOROVOD_RANK"], environment[ATTEMPT].partition(".")[2]
            found[int(rank), int(start)] = process
    return found
