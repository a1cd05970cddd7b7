"""A job over several machines with a limited network."""

import dataclasses
import os
import pathlib
import tempfile

from ctr_trainer.bench import namespaces
from ctr_trainer.bench.jobs import Job, environment
from ctr_trainer.embedding.service.local_service import LocalService

_SERVICE_SECONDS = 120.0


class MachineService(LocalService):
    """A `LocalService` that runs on a machine and listens there, for those who have its token.

    Attributes:
      token_file: the path of the token.
    """

    def __init__(self, machine, directory, data_dir, timeout):
        """Starts it and waits until it answers.

        Args:
          machine: of `namespaces.machines`.
          directory: for its log and its token.
          data_dir: that the jobs' model directories lie below.
          timeout: seconds in which it may do nothing while it starts, see `LocalService`.

        Raises:
          UserError: it ended, or does not answer.
        """
        self._machine = machine
        self.token_file = directory / "token"
        self.token_file.touch(mode=0o600)
        super().__init__(str(data_dir), str(directory / "service.log"), timeout)
        self.token_file.write_text(self.token)

    def _command(self, *given):
        command = super()._command(*given)
        return self._machine.command([*command, f"--bind={self._machine.address}:0"])


@dataclasses.dataclass(frozen=True)
class NetworkJob:
    """A `Job` over machines, at a speed of their network, with a service of its own on the first one.

    Attributes:
      job: the Job, but for what its machines add.
      machines: of `namespaces.machines`.
      gbit: for `namespaces.limit`.
      programs: directory with the `ssh` that reaches the machines.
    """

    job: Job
    machines: list
    gbit: float
    programs: pathlib.Path

    @property
    def name(self):
        return self.job.name

    @property
    def workers(self):
        return self.job.workers

    @property
    def launcher(self):
        """-> horovodrun on the first machine."""
        hosts = ",".join(f"{each.address}:1" for each in self.machines)
        run = ["horovodrun", "-np", self.workers, "-H", hosts, "--gloo"]
        return tuple(self.machines[0].command([*run, "--network-interface", namespaces.INTERFACE]))

    def run(self, directory, timeout):
        """As `Job.run`."""
        namespaces.limit(self.machines, self.gbit)
        path = os.pathsep.join([str(self.programs), environment(1)["PATH"]])
        runs = pathlib.Path(directory).resolve().parent
        runs.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as own:
            with MachineService(self.machines[0], pathlib.Path(own), runs, _SERVICE_SECONDS) as service:
                rows = (f"--embedding_service={service.address}", f"--token_file={service.token_file}")
                # sshd reads no profile's PATH for a command, and each machine has one core.
                variables = (("PATH", path), ("CTR_TRAINER_THREADS", "1"), ("OMP_NUM_THREADS", "1"))
                job = dataclasses.replace(
                    self.job,
                    flags=(*self.job.flags, *rows),
                    environment=(*self.job.environment, *variables),
                    launcher=self.launcher,
                )
                return job.run(directory, timeout)
