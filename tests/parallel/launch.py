"""Starts real jobs under horovodrun."""

import atexit
import contextlib
import functools
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid

import psutil

from ctr_trainer.system.processes import child
from tests.parallel import start as starter
from tests.parallel import warm

WORKERS = pathlib.Path(__file__).parent / "workers"
START = pathlib.Path(__file__).parent / "start.py"
# Workers find no scikit-learn, nor what else `tensorflow_import` hides: Keras imports it wherever it is, which costs a
# second of CPU.
ABSENT = pathlib.Path(__file__).parent / "absent"
ROOT = pathlib.Path(__file__).parents[2]
TIMEOUT_SECONDS = 240


def environment(is_warm=False):
    """Returns the environment of a job: this interpreter first, one thread per worker, quiet.

    Args:
      is_warm: whether workers that `START` starts are forks of processes that have imported TensorFlow already, which
        saves each of them two to four seconds of CPU.
    """
    paths = [str(ROOT), str(ABSENT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CTR_TRAINER_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        **({starter.VARIABLE: _servers()[0]} if is_warm else {}),
    }


def command(workers, *arguments, is_warm=False, hosts=None):
    """Returns the command line of a job whose workers run `python arguments...`; without horovodrun for 0 workers.

    Args:
      is_warm: whether `START` starts them, as it starts all programs of `WORKERS`.
      hosts: those of horovodrun's option -H.
    """
    ours = isinstance(arguments[0], pathlib.Path) and arguments[0].parent == WORKERS
    python = [sys.executable, *([str(START)] if ours or is_warm else []), *map(str, arguments)]
    on_hosts = ["-H", hosts] if hosts else []
    return python if not workers else ["horovodrun", "-np", str(workers), *on_hosts, "--gloo", *python]


def start(workers, *arguments, is_warm=True, **more):
    """Starts a job, and returns its process, whose output is text in one pipe unless `more` says otherwise.

    Args:
      is_warm: whether programs of `WORKERS` are forks of the servers of `warm.py`.
    """
    options = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) | more
    return subprocess.Popen(command(workers, *arguments), env=environment(is_warm), **options)


def run(workers, *arguments, check=True, seconds=TIMEOUT_SECONDS, is_warm=True, hosts=None):
    """Runs a job to its end, for so many seconds at most. Returns a `subprocess.CompletedProcess`, its output as text.

    Args:
      is_warm: whether `warm_python` runs them; if not, the workers start as users start them.
    """
    line = command(workers, *arguments, hosts=hosts)
    line = warmed(line) if is_warm else line
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=seconds)
    if check and done.returncode:
        raise AssertionError(f"{done.args} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


@contextlib.contextmanager
def service(directory, data_dir):
    """Yields host:port of an embedding service with checkpoints below `data_dir`; `directory` has its other files."""
    directory.mkdir(exist_ok=True)
    arguments = ["--bind=127.0.0.1:0", f"--data_dir={data_dir}", f"--port_file={directory / 'port'}"]
    with open(directory / "log", "w") as log:
        command = [sys.executable, "-m", "ctr_trainer", "serve", *arguments]
        told = {**environment(), child.CHILD: "{}"}
        started = subprocess.Popen(command, env=told, stdin=subprocess.PIPE, stderr=log)
    try:
        wait_until((directory / "port").exists, "the service")
        yield (directory / "port").read_text()
    finally:
        started.stdin.close()
        started.wait(60)


@functools.cache
def _servers() -> tuple[str, list[object]]:
    """Returns where the servers of `warm.py` listen, which all processes of a test run share, and what keeps them."""
    path = f"{tempfile.gettempdir()}/ctr_trainer-{os.environ.get('PYTEST_XDIST_TESTRUNUID', uuid.uuid4().hex)}-"
    kept: list[object] = []
    for number in range(starter.SERVERS):
        command = [sys.executable, warm.__file__, f"{path}{number}"]
        server = subprocess.Popen(command, env=environment(), stdin=subprocess.PIPE, start_new_session=True)
        # One that finds another server at its socket ends, and is no zombie among the children that tests look at.
        threading.Thread(target=server.wait, daemon=True).start()
        kept.append(server)
        wait_until(functools.partial(_is_held, command[-1], kept), "a server of warm processes")
    return path, kept


def _is_held(path: str, kept: list[object]) -> bool:
    """Returns whether a server listens, which is a moment after its socket is there, and holds it."""
    with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
        kept.append(warm.hold(path))
        return True
    return False


def warmed(line):
    """Returns a command line, of `command`, by which `warm_python` runs the workers."""
    return [warm_python() if part == sys.executable else part for part in line if part != str(START)]


@functools.cache
def warm_python() -> str:
    """Returns a program to run in place of `sys.executable`: what it runs has imported TensorFlow already.

    Programs and commands of this package are forks of the servers of `warm.py`, and so are the workers and services
    that they start. The process that a test sees is `start.py`, which takes signals to the fork and ends as it ends;
    it cannot take SIGSTOP there, and has cores and memory of its own. Tests of these things start the real Python.
    """
    directory = pathlib.Path(tempfile.mkdtemp(prefix="ctr_trainer-python-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    if horovodrun := shutil.which("horovodrun", path=environment()["PATH"]):
        (directory / "horovodrun").symlink_to(horovodrun)  # Launchers look for it next to Python.
    program = directory / "python"
    program.write_text(
        f"#!{sys.executable} -IS\nimport sys\nsys.path.append({str(START.parent)!r})\nimport start\n"
        f"start.as_python({sys.executable!r}, {_servers()[0]!r}, sys.argv[1:])\n"
    )
    program.chmod(0o755)
    return str(program)


def last_line(output):
    """Returns the last line of a worker of a job, as (rank, line), without those of a thread of Gloo that ends late."""
    lines = [line for line in output.splitlines() if line.startswith("[") and "<stderr>:" in line]
    lines = [line for line in lines if not re.match(r"\[\d+\]<stderr>:(terminate called|  what\(\): )", line)]
    prefix, _, line = lines[-1].partition("<stderr>:")
    return int(prefix[1:-1]), line


def services(model_dir):
    """Returns the `psutil.Process` of each lookup service that uses this model directory."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if "serve" in line and any(str(model_dir) in part for part in line):
            found.append(process)
    return found


def wait_until(condition, what, seconds=120, every=0.05):
    """Returns once `condition()` is true; fails after so many seconds, naming what was waited for."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(every)


def stand_still(pid: int) -> None:
    """Stops a process by SIGSTOP, and returns once all of its threads stand: that takes a moment after the signal."""
    os.kill(pid, signal.SIGSTOP)
    threads = pathlib.Path(f"/proc/{pid}/task")

    def stands() -> bool:
        states = [(thread / "stat").read_text(encoding="ascii").rpartition(") ")[2][0] for thread in threads.iterdir()]
        return all(state in "TZ" for state in states)

    wait_until(stands, f"process {pid} to stop", 60, every=0.005)
