"""A job under `launch` on two hosts of network namespaces, of which one is taken away and given back."""

import contextlib
import os
import pathlib
import re
import secrets
import signal
import subprocess
import tempfile
import time

from faults_job import FaultyJob

from ctr_trainer.bench import namespaces, ssh

_CORES = sorted(os.sched_getaffinity(0))
_SECONDS_AWAY = 5.0


def take_a_host_and_give_it_back(directory, flags):
    """Runs a job of two hosts; takes one of them away in the middle of it, and gives it back.

    Args:
      directory: for the model and the keys of ssh.
      flags: list, of the training.

    Returns:
      seconds from the loss of the host to the first step on the other one. Returning says that the host was taken in
      again, and that both trained then.

    Raises:
      UserError: this machine does not let this process make network namespaces.
    """
    namespaces.require_privileges({**namespaces.PACKAGES, **ssh.PACKAGES})
    directory = pathlib.Path(directory)
    with contextlib.ExitStack() as stack:
        machines = stack.enter_context(namespaces.machines(2, _CORES))
        keys = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        programs = stack.enter_context(ssh.daemons(machines, keys))
        token = directory / "token"
        token.write_text(secrets.token_hex())
        environment = {"PATH": os.pathsep.join([str(programs), os.environ["PATH"]])}
        shard = stack.enter_context(_shard(machines[0], directory, token))
        model_dir = directory / "model"
        options = ["-np", 2, "--min-np", 1, "-H", "host-1:1,host-2:1", "--network-interface", namespaces.INTERFACE]
        more = [f"--model_dir={model_dir}", f"--embedding_service={shard}", f"--token_file={token}"]
        job = FaultyJob([*options, "--", *flags, *more], model_dir, None, 0.0, machines[0].command, environment)
        with job:
            job.wait_for("saved the checkpoint of step")
            time.sleep(_SECONDS_AWAY + 10)
            lost = time.time()
            _cut(machines[1], "down")
            _kill_workers(machines[1])
            seconds = job.wait_for("training again after") - lost
            time.sleep(_SECONDS_AWAY)
            _cut(machines[1], "up")
            job.wait_for("there are 2 slots now")
            job.wait_for("training again after", 2)
    return seconds


@contextlib.contextmanager
def _shard(machine, directory, token):
    """Gives `host:port` of a shard on a machine."""
    serve = ["python", "-m", "ctr_trainer", "serve", "--bind=0.0.0.0:0", f"--data_dir={directory}"]
    process = subprocess.Popen(
        machine.command([*serve, f"--token_file={token}"]), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        line = next(line for line in process.stdout if "answers on" in line)
        port = re.search(r"answers on 0.0.0.0:(\d+)", line)[1]
        yield f"{machine.name}:{port}"
    finally:
        process.terminate()
        process.communicate(timeout=60)


def _cut(machine, state):
    subprocess.run(machine.command(["ip", "link", "set", namespaces.INTERFACE, state]), check=True, timeout=60)


def _kill_workers(machine):
    """Kills what runs on a machine but its daemon of ssh: with its network down nobody else is told of it."""
    for pid in namespaces._run(["ip", "netns", "pids", machine.namespace]).split():
        with contextlib.suppress(OSError):
            if b"ctr_trainer" in pathlib.Path("/proc", pid, "cmdline").read_bytes():
                os.kill(int(pid), signal.SIGKILL)
