"""Trains under horovodrun, and resumes automatically after a loss: all workers restart from the last checkpoint.

The flags after `--` are flags of `train`. The launcher's options have the names and the meanings of horovodrun's.
After the loss of a worker, a host or a service, all workers stop, and --min-np to --max-np of them start on the
available hosts. An error that the user can correct ends the training.
"""

import os
import pathlib
import re
import sys

from ctr_trainer.commands.experiment import flags
from ctr_trainer.commands.experiment.checks import require_training
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.settings.command_flags import LaunchFlags
from ctr_trainer.system.messages import log_lines
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes.child import importing_environment

GROUPS = (LaunchFlags,)
POSITIONAL = "[--options] -- TRAIN_FLAGS"
EXAMPLES = (
    "python -m ctr_trainer launch -np 2 -- --flagfile=configs/demo.flags --model_dir=models/launched "
    "--save_checkpoints_secs=10",
    "python -m ctr_trainer launch -np 8 --min-np 4 -H a:4,b:4 --network-interface eth0 -- --flagfile=job.flags",
    "python -m ctr_trainer launch -np 2 --min-np 1 --max-np 8 --host-discovery-script ./hosts.sh -- "
    "--flagfile=job.flags",
)
# Options that horovodrun spells differently. Its options also have hyphens instead of underscores.
_SPELLED = {"H": "hosts", "num-proc": "np", "min-num-proc": "min_np", "max-num-proc": "max_np", "p": "ssh_port"}
_OPTION = re.compile(r"--?([A-Za-z][\w-]*)(=.*)?", re.DOTALL)
# Time for the worker processes to exit, after the time in which they stop training and save.
_ENDING_SECONDS = 5.0


def spelled(arguments: list[str]) -> list[str]:
    """Returns the arguments with the options before `--` in this package's spelling."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return [*map(_as_here, arguments[:end]), *arguments[end:]]


def _as_here(argument: str) -> str:
    option = _OPTION.fullmatch(argument)
    if not option:
        return argument
    name = _SPELLED.get(option[1], option[1].replace("-", "_"))
    return f"--{name}{option[2] or ''}"


def run(arguments: list[str], options: LaunchFlags) -> None:
    """Supervises a training with these flags of `train`."""
    from ctr_trainer.launch.hosts import open_hosts
    from ctr_trainer.launch.supervisor import Supervisor

    experiment = _experiment(arguments)
    log_lines.install(experiment.log.log_format)
    model_dir = experiment.model.model_dir
    command = [sys.executable, "-m", "ctr_trainer.launch.worker", *arguments]
    # Otherwise each restart would go back to that step, and set aside what was trained since.
    again = [*command, "--resume_from=0"] if experiment.model.resume_from else command
    grace_seconds = experiment.run.grace_secs + _ENDING_SECONDS
    environment = importing_environment()
    environment["PATH"] = os.pathsep.join([str(pathlib.Path(sys.executable).parent), environment.get("PATH", "")])
    with open_hosts(options) as hosts:
        Supervisor(options, hosts, command, again, environment, model_dir, grace_seconds).run()


def _experiment(arguments: list[str]) -> Experiment:
    """Returns the `Experiment` of these flags of `train`, after the same checks as in `train`."""
    if not arguments:
        raise UserError("the flags of `train` after -- are missing, such as launch -np 2 -- --flagfile=my.flags")
    try:
        given, (experiment, evaluation, *_) = flags.parse_given(flags.EXPERIMENT, arguments)
    except UserError as error:
        raise UserError(f"{error}; see python -m ctr_trainer train --help") from None
    require_training(given, experiment, evaluation)
    return experiment
