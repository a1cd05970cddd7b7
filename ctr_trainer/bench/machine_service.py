"""A lookup service on one of several machines."""

from ctr_trainer.embedding.service.local_service import LocalService


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
