"""Jobs over several machines with a limited network."""

import dataclasses
import os
import pathlib
import tempfile
from collections.abc import Sequence

from ctr_trainer.bench import namespaces
from ctr_trainer.bench.jobs import Job, Ranks, environment
from ctr_trainer.bench.namespaces import Machine
from ctr_trainer.embedding.service.local_service import LocalService

_SERVICE_SECONDS = 120.0


class MachineService(LocalService):
    """A `LocalService` that runs on a machine and listens on its address.

    Attributes:
      token_file: path of the file with the token for its clients.
    """

    def __init__(
        self, machine: Machine, directory: pathlib.Path, data_dir: str | os.PathLike[str], timeout: float
    ) -> None:
        """Starts the service and waits until it answers.

        Args:
          machine: the machine.
          directory: directory of its log and its token.
          data_dir: directory that contains the jobs' model directories.
          timeout: seconds in which the starting service may do nothing, see `LocalService`.

        Raises:
          UserError: the service ended or does not answer.
        """
        self._machine = machine
        self.token_file = directory / "token"
        self.token_file.touch(mode=0o600)
        super().__init__(str(data_dir), str(directory / "service.log"), timeout)
        self.token_file.write_text(self.token)

    def _command(self, data_dir: str | os.PathLike, port_file: pathlib.Path) -> list[str]:
        command = super()._command(data_dir, port_file)
        return self._machine.command([*command, f"--bind={self._machine.address}:0"])


@dataclasses.dataclass(frozen=True)
class NetworkJob:
    """A `Job` with one worker on each machine, a limited network, and its own embedding service on the first machine.

    Attributes:
      job: the job, without the flags and the environment that its machines add.
      machines: the machines.
      gbit: limit of the network in Gbit/s; 0 for no limit.
      programs: directory with the `ssh` that reaches the machines.
    """

    job: Job
    machines: Sequence[Machine]
    gbit: float
    programs: pathlib.Path

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def workers(self) -> int:
        return self.job.workers

    @property
    def launcher(self) -> tuple[str, ...]:
        """The command that runs horovodrun on the first machine."""
        hosts = ",".join(f"{each.address}:1" for each in self.machines)
        run = ["horovodrun", "-np", self.workers, "-H", hosts, "--gloo"]
        return tuple(self.machines[0].command([*run, "--network-interface", namespaces.INTERFACE]))

    def with_seed(self, seed: int) -> "NetworkJob":
        """Returns the same job with another --seed."""
        return dataclasses.replace(self, job=self.job.with_seed(seed))

    def run(self, directory: str | os.PathLike[str], timeout: float) -> Ranks:
        """Limits the network, starts the service and runs the job to its end, see `Job.run`."""
        namespaces.limit(self.machines, self.gbit)
        path = os.pathsep.join([str(self.programs), environment(1)["PATH"]])
        runs = pathlib.Path(directory).resolve().parent
        runs.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as own:
            service = MachineService(self.machines[0], pathlib.Path(own), runs, _SERVICE_SECONDS)
            with service:
                rows = (f"--embedding_service={service.address}", f"--token_file={service.token_file}")
                # sshd does not take the PATH of a profile for a command, and each machine has one core.
                variables = (("PATH", path), ("CTR_TRAINER_THREADS", "1"), ("OMP_NUM_THREADS", "1"))
                job = dataclasses.replace(
                    self.job,
                    flags=(*self.job.flags, *rows),
                    environment=(*self.job.environment, *variables),
                    launcher=self.launcher,
                )
                return job.run(directory, timeout)
