"""Starts a Python program in a process that has imported TensorFlow already, which saves two seconds of CPU.

python start.py PROGRAM.py ARGUMENT...
python start.py -m MODULE ARGUMENT...

The process is a fork of a server of `warm.py`; this one gives it its arguments, directory, environment and standard
streams, waits for it, and ends as it ends; it takes the process with it when it is killed. Without a server, the
program runs in this process, and imports TensorFlow as `train` does.

`as_python` is for a program that stands in place of Python: see `launch.warm_python`.
"""

import array
import contextlib
import json
import os
import signal
import socket
import sys

# Where the servers listen, and what is appended for each: ranks of a job have different seeds of hashes, as they have
# where each process starts anew.
VARIABLE = "CTR_TRAINER_TEST_WARM"
SERVERS = 2


def run_program(arguments: list[str]) -> None:
    """Runs a program as `python ARGUMENTS...` does."""
    import runpy

    if arguments[0] == "-m":
        sys.path[0], sys.argv = os.getcwd(), arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0], sys.argv = os.path.dirname(os.path.abspath(arguments[0])), arguments
        runpy.run_path(arguments[0], run_name="__main__")


def as_python(executable: str, path: str, arguments: list[str]) -> None:
    """Runs `python ARGUMENTS...`: programs and this package by a server, and so what they start; all else by Python.

    Args:
      executable: this Python.
      path: where the servers listen.
      arguments: those of Python.
    """
    if not arguments[0].endswith(".py") and (arguments[0] != "-m" or not arguments[1].startswith("ctr_trainer")):
        os.execv(executable, [executable, *arguments])
    _end_as(path, arguments, sys.argv[0])


def _end_as(path: str, arguments: list[str], executable: str) -> None:
    """Runs a program by a server, and ends as the program ends."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(f"{path}{int(os.environ.get('HOROVOD_RANK', 0)) % SERVERS}")
        status = _run_by(server, arguments, executable)
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)  # Python's own end restores the default handlers, by which a late signal would kill this process.


def _run_by(server: socket.socket, arguments: list[str], executable: str) -> int:
    """Returns what the program ends with: a status, or -N after signal N."""
    request = json.dumps([arguments, os.getcwd(), dict(os.environ), executable]).encode()
    streams = array.array("i", [0, 1, 2])
    server.sendmsg([len(request).to_bytes(4, "little")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
    server.sendall(request)
    pid = int.from_bytes(_answer(server), "little")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGABRT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, _: _send(pid, number))
    return int.from_bytes(_answer(server), "little", signed=True)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # It has just ended.
        os.kill(pid, number)


def _answer(server: socket.socket) -> bytes:
    if answer := server.recv(4, socket.MSG_WAITALL):
        return answer
    raise SystemExit("the server of warm.py has ended")


def main(arguments: list[str]) -> None:
    """Runs a program by a server, if there is one, and ends as the program ends."""
    path = os.environ.pop(VARIABLE, "")
    if not path:
        from ctr_trainer.system.processes import tensorflow_import

        tensorflow_import.load()
        run_program(arguments)
    else:
        _end_as(path, arguments, sys.executable)


if __name__ == "__main__":
    main(sys.argv[1:])
