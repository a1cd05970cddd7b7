"""What a job under `launch` leaves behind, by the way it ends; `leftovers` has the ends of jobs without it."""

import pathlib
import signal
import tempfile

import leftovers
from faults_job import FaultyJob


def _kill_horovodrun(job):
    next(process for process in job.left() if "horovodrun" in " ".join(process.cmdline()[:2])).kill()


# By name, what ends it, in turn.
_ENDS = {
    "launch_sigterm": (lambda job: job.process.terminate(),),
    "launch_sigint": (lambda job: job.process.send_signal(signal.SIGINT),),
    "launch_sigkill": (lambda job: job.process.kill(),),
    "launch_horovodrun_sigkill": (_kill_horovodrun, lambda job: job.process.kill()),
    "launch_rank_1_sigkill": (lambda job: job.worker(1).kill(), lambda job: job.process.kill()),
    "launch_service_sigkill": (lambda job: job.services()[0].kill(), lambda job: job.process.terminate()),
}


def left_behind(directory, flags, ends):
    """Ends jobs in many ways, those under `launch` first. -> list of what was left

    Args:
      directory: for data, models and temporary files; made here.
      flags: list, of the training under `launch`.
      ends: number of jobs.
    """
    directory, found = pathlib.Path(directory), []
    directory.mkdir()
    leftovers.make_data(directory)
    for number, name in enumerate([*_ENDS, *leftovers.ENDS][:ends], 1):
        left = _left_after(name, directory, flags) if name in _ENDS else leftovers.left_after(name, directory)
        found += left
        print(f"end {number} of {ends}, {name}: {'; '.join(left) or 'nothing left'}", flush=True)
    return found


def _left_after(name, directory, flags):
    trace = leftovers.Trace.below(directory)
    model_dir = tempfile.mkdtemp(prefix="model-", dir=directory)
    arguments = ["-np", 2, "--", *flags, f"--model_dir={model_dir}"]
    with FaultyJob(arguments, model_dir, environment=trace.environment) as job:
        job.wait_for("saved the checkpoint of step")
        trace.look()
        for act in _ENDS[name]:
            act(job)
        job.process.wait(120)
        return leftovers.left_behind(trace, [model_dir])
