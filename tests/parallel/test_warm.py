"""Programs that start in forks of a process that has imported TensorFlow run and end as they do in one of their own."""

import signal
import subprocess
import sys

import psutil
import pytest

from tests.parallel import launch

pytestmark = pytest.mark.integration

PROGRAM = """
import atexit, os, pathlib, signal, sys, time
atexit.register(print, "at exit")
assert __name__ == "__main__" and "ctr_trainer.ranks" not in sys.modules
assert {"tensorflow", "ctr_trainer.data.reader", "ctr_trainer.embedding.store.local_store"} <= sys.modules.keys()
import beside_it
print(sys.argv[1:], os.environ["OF_THE_JOB"], os.getcwd(), flush=True)
pathlib.Path("pid").write_text(str(os.getpid()))
if sys.argv[1] == "wait":
    time.sleep(600)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
print("to the log", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Returns f(argument), which starts the program above."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "beside_it.py").touch()
    monkeypatch.setenv("OF_THE_JOB", "set")

    def start(argument):
        command = launch.command(0, tmp_path / "program.py", argument, is_warm=True)
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return subprocess.Popen(command, cwd=tmp_path, env=launch.environment(is_warm=True), **pipes)

    return start


def test_a_program_gets_its_arguments_and_its_starter_ends_as_it_does(started, tmp_path):
    job = started("3")
    assert job.communicate(timeout=120) == (f"['3'] set {tmp_path}\nat exit\n", "to the log\n")
    assert job.returncode == 3
    job = started("killed")
    job.communicate(timeout=120)
    assert job.returncode == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_starter_ends_the_program(started, tmp_path, number):
    job = started("wait")
    launch.wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the program")
    program = psutil.Process(int((tmp_path / "pid").read_text()))
    job.send_signal(number)
    job.communicate(timeout=120)
    assert job.returncode == -number
    launch.wait_until(lambda: not program.is_running(), "the program to end")


def test_it_runs_programs_in_place_of_python_and_leaves_the_rest_to_python(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import sys; print('tensorflow' in sys.modules, sys.executable, *sys.argv[1:])")
    python = launch.warm_python()
    for arguments, said in (
        ([program, "-x"], f"True {python} -x"),
        (["-c", program.read_text(), "-x"], f"False {sys.executable} -x"),
    ):
        done = subprocess.run([python, *arguments], env=launch.environment(), capture_output=True, text=True)
        assert (done.returncode, done.stdout.strip()) == (0, said), done.stderr
    version = [python, "-m", "ctr_trainer", "--version"]
    assert subprocess.run(version, env=launch.environment(), capture_output=True, text=True).stdout.strip()
