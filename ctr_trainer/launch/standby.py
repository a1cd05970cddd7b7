"""The next start of the workers, prepared while the present ones train."""

from ctr_trainer.launch.gate import StartingGate


class Standby:
    """Workers that have imported all they need, TensorFlow first, and wait at a gate: half of the time of a restart.

    Args:
      start: f(hosts, gate) -> `Attempt`, on hosts that are this one.
    """

    def __init__(self, start):
        self._start = start
        self._attempt = self._gate = None

    def prepare(self, hosts):
        """Starts workers that wait, unless there are some or there were some that have ended."""
        if self._attempt is None:
            self._gate = StartingGate()
            self._attempt = self._start(hosts, self._gate)

    def take(self, hosts):
        """-> an `Attempt` with these hosts, whose workers begin now; None if there is none."""
        attempt = self._attempt
        if attempt is None or attempt.hosts != hosts or attempt.has_ended:
            self.close()
            return None
        self._attempt = self._gate = None
        attempt.release()
        return attempt

    def close(self):
        """Ends the workers that wait."""
        if self._attempt is not None:
            self._gate.close()
            self._attempt.end(0.0)
            self._attempt = self._gate = None
