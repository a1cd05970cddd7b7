"""The process that delivers a spool, as a training starts it."""

import dataclasses
import sys

from ctr_trainer.messages import log_lines
from ctr_trainer.processes.child import Child


class DeliveryProcess(Child):
    """`publish --from=SPOOL --to=URL` in a child process, which ends when this process ends, however it ends.

    A context manager: leaving it stops the process. What it has delivered stands in the spool: `read_delivered`.

    Args:
      spool: path or URL of the publication that the training writes.
      to: URL of the target.
      redis: `RedisFiles` of a cluster.
      log_file: where its output goes, appended.
      cores: that it may use; None for those of this process.
    """

    def __init__(self, spool, to, redis, log_file, cores=None):
        flags = [f"--{name}={value}" for name, value in dataclasses.asdict(redis).items() if value]
        command = [sys.executable, "-m", "ctr_trainer", "publish", f"--from={spool}", f"--to={to}"]
        super().__init__(
            [*command, *flags, "--exit_with_stdin", f"--log_format={log_lines.installed_form()}"], log_file, cores
        )
