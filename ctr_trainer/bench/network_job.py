"""A job over several machines with a limited network."""

import dataclasses
import os
import pathlib
import tempfile

from ctr_trainer.bench import namespaces
from ctr_trainer.bench.jobs import Job, environment
from ctr_trainer.bench.machine_service import MachineService

_SERVICE_SECONDS = 120.0


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
