"""Keeps a training running: starts its workers, decides whether and when to restart them, and on which hosts."""

import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType

from ctr_trainer.launch.attempt import Attempt, Standby
from ctr_trainer.launch.hosts import Host, ReachableHosts, filled, host_of, listed, slots
from ctr_trainer.launch.output import Ending, Kind, Outlet
from ctr_trainer.launch.progress import Reached, Restart, Saved, add_to_summary, summary_stamp, where_it_resumes
from ctr_trainer.launch.worker import StartingGate
from ctr_trainer.ranks import stop_signals
from ctr_trainer.settings.command_flags import LaunchFlags
from ctr_trainer.system.messages.errors import StoppedInOrder, UserError
from ctr_trainer.system.processes import child, reach

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.1
# If a worker fails, horovodrun stops the other workers. This takes a second, or 10 s if one of them hangs.
_ENDING_SECONDS, _KNOWN_SECONDS = 3.0, 0.5
# A host that has not answered for this time counts as lost.
_SILENT_SECONDS = 3.0
# A training that ends sooner does not need standby workers.
_STANDBY_SECONDS = 10.0


def _growing(failures: int, first: float, longest: float) -> float:
    """Returns seconds that double with each failure: 0, 0, `first`, 2 `first`, 4 `first` and so on, up to `longest`."""
    return 0.0 if failures < 2 else min(first * 2 ** (failures - 2), longest)


class Patience:
    """Counts the restarts since the last new checkpoint.

    Args:
      most: largest number of consecutive restarts without a new checkpoint.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._fruitless, self._failure = 0, ""

    def new_checkpoint(self) -> None:
        """Resets the count, because the training makes progress."""
        self._fruitless, self._failure = 0, ""

    @property
    def pause_seconds(self) -> float:
        """The pause before the next start: 0 s before the first restart, then 5 s, 10 s, 20 s, 40 s and 60 s.

        A lost store or service may need minutes to come back.
        """
        return _growing(self._fruitless, 5.0, 60.0)

    def why_not(self, ending: Ending) -> str:
        """Counts a restart. Returns a sentence that explains why the workers are not restarted; "" if they are."""
        if ending.kind is Kind.REFUSED:
            return "Not restarted: the same flags and data would end the same way"
        if ending.kind is Kind.FAILED and ending.reason == self._failure:
            return "Not restarted: the previous start ended with the same error, and no checkpoint was written"
        self._failure = ending.reason if ending.kind is Kind.FAILED else ""
        self._fruitless += 1
        if self._fruitless > self._most:
            return f"Not restarted: --max_restarts={self._most} restarts in a row produced no new checkpoint"
        return ""


class LeftOut:
    """Counts the failures of each host.

    After its first failure, a host is used again. After further consecutive failures, it is left out for 10 s, 20 s,
    40 s and so on, at most 10 minutes. A new checkpoint of a training with this host resets the count.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: dict[str, int] = {}
        self._until: dict[str, float] = {}

    def failed(self, name: str) -> float:
        """Counts a failure, and returns the number of seconds for which the host is left out."""
        self._failures[name] = self._failures.get(name, 0) + 1
        seconds = _growing(self._failures[name], 10.0, 600.0)
        self._until[name] = self._clock() + seconds
        return seconds

    def took_part(self, hosts: Iterable[Host]) -> None:
        """Resets the counts of hosts that took part in training until a new checkpoint."""
        for host in hosts:
            self._failures.pop(host.name, None)

    def others(self, hosts: Iterable[Host]) -> tuple[Host, ...]:
        """Returns the hosts that are not currently left out."""
        now = self._clock()
        return tuple(host for host in hosts if self._until.get(host.name, now) <= now)


class Supervisor:
    """Starts the workers of one training, and restarts them as often as needed.

    Args:
      environment: complete environment of each worker.
      grace_seconds: longest time in which the workers may save and end.
    """

    def __init__(
        self,
        flags: LaunchFlags,
        hosts: ReachableHosts,
        command: Sequence[str],
        environment: Mapping[str, str],
        model_dir: str,
        grace_seconds: float,
        outlet: Outlet,
    ) -> None:
        self._outlet = outlet
        self._flags, self._hosts, self._command, self._environment = flags, hosts, command, environment
        self._model_dir, self._grace_seconds = model_dir, grace_seconds
        self._patience, self._left_out = Patience(flags.max_restarts), LeftOut()
        self._restarts: list[Restart] = []
        self._asked: int | None = None
        self._standby = Standby(self._start)
        self._job = secrets.token_hex(16)

    def run(self) -> None:
        """Runs the training to its end; call it in the main thread.

        Raises:
          UserError: the workers are not restarted. The message contains their error and the reason.
          StoppedInOrder: the workers have ended because of SIGTERM or SIGINT.
        """
        summary, saved = summary_stamp(self._model_dir), Saved.newest(self._model_dir) or Saved()
        with child.handling_signals(self._take_signal), contextlib.closing(self._standby):
            placed = self._wait_for_slots(self._flags.np)
            while True:
                attempt = self._standby.take(placed) or self._start(placed)
                reached = Reached(self._model_dir, attempt, saved)
                ending, saved = self._watch(attempt, reached), reached.saved
                if ending.kind is Kind.FINISHED:
                    break
                if ending.kind is not Kind.CHANGED and (why_not := self._patience.why_not(ending)):
                    raise UserError(f"{ending.reason.rstrip('.')}. {why_not}")
                if ending.rank is not None and len(attempt.hosts) > 1:
                    name = host_of(attempt.hosts, ending.rank)
                    if seconds := self._left_out.failed(name):
                        _log.warning("%s has failed again: left out for %.0f s if the others are enough", name, seconds)
                self._pause(self._patience.pause_seconds)
                placed = self._wait_for_slots(self._flags.fewest)
                self._restarts.append(reached.restart(ending.reason, placed))
                _log.warning("restart %d: %s", len(self._restarts), self._restarts[-1].line())
        if self._restarts:
            add_to_summary(self._model_dir, self._restarts, summary)

    def _start(self, hosts: tuple[Host, ...], gate: StartingGate | None = None) -> Attempt:
        """Returns an `Attempt`. If its workers wait at a gate, its name contains the number of the next restart."""
        name = f"{self._job}.{len(self._restarts) + (gate is not None)}"
        return Attempt(name, hosts, self._command, self._flags, self._environment, self._outlet, gate)

    def _watch(self, attempt: Attempt, reached: Reached) -> Ending:
        """Waits until all processes of the attempt on this host have ended, and returns the `Ending`."""
        while not attempt.has_ended:
            self._end_if_asked(attempt)
            # Without the lost rank, the other ranks cannot save, so a long wait is useless.
            is_known = attempt.lost_at is not None and attempt.output.said
            seconds = _KNOWN_SECONDS if is_known else _ENDING_SECONDS
            if attempt.seconds_since_loss > seconds:
                break
            if silent := self._silent_host(attempt):
                attempt.end(0.0)
                self._note(attempt, reached, is_last=True)
                return Ending(Kind.LOST, f"{silent} no longer answers")
            if self._note(attempt, reached) and (change := self._change(attempt)):
                attempt.terminate()
                attempt.end(self._grace_seconds)
                self._note(attempt, reached, is_last=True)
                return Ending(Kind.CHANGED, change)
            # Another failure may soon follow the first one.
            if self._flags.standby and reached.trains_for(0.0 if self._restarts else _STANDBY_SECONDS):
                self._prepare_standby()
            time.sleep(_POLL_SECONDS)
        ending = attempt.end(0.0)
        self._note(attempt, reached, is_last=True)
        return ending

    def _note(self, attempt: Attempt, reached: Reached, is_last: bool = False) -> bool:
        """Records the progress of the training. Returns whether there is a new checkpoint."""
        is_new = reached.look(is_last)
        if is_new:
            self._patience.new_checkpoint()
            self._left_out.took_part(attempt.hosts)
        last: Restart | None = self._restarts[-1] if self._restarts else None
        if last and last.seconds_to_train_again is None and reached.trained > (last.step or 0):
            last.seconds_to_train_again = round(reached.trained_at - last.lost_at, 1)
            _log.info("training again after %.1f s, at step %d", last.seconds_to_train_again, reached.trained)
        return is_new

    def _prepare_standby(self) -> None:
        """Prepares standby workers on this host, for the failure of a worker on this host or of all other hosts."""
        here = [host for host in self._left_out.others(self._hosts.now()) if reach.is_here(host.name)]
        placed = filled(here, self._flags.most)
        if slots(placed) >= self._flags.fewest:
            self._standby.prepare(placed)

    def _silent_host(self, attempt: Attempt) -> str:
        """Returns the name of a host of the attempt that has not answered for some seconds; "" for none."""
        silent = (host.name for host in attempt.hosts if self._hosts.silent_for(host.name) > _SILENT_SECONDS)
        return next(silent, "")

    def _change(self, attempt: Attempt) -> str:
        """Returns a sentence that explains why the hosts should be changed; "" if they should not."""
        placed, now = self._choose(self._flags.fewest), {host.name: host.slots for host in self._hosts.now()}
        gone = [str(host) for host in attempt.hosts if now.get(host.name, 0) < host.slots]
        if placed and gone:
            return f"{', '.join(gone)} is no longer available"
        if slots(placed) > attempt.workers:
            return f"there are {slots(placed)} slots now, on {listed(placed)}"
        return ""

    def _choose(self, workers: int) -> tuple[Host, ...]:
        """Returns hosts for at least `workers` workers, each with its number of workers as its slots; () if too few."""
        hosts = self._hosts.now()
        # If the remaining hosts are not enough, the hosts that are left out are used as well.
        for some in (self._left_out.others(hosts), hosts):
            placed = filled(some, self._flags.most)
            if slots(placed) >= workers:
                return placed
        return ()

    def _pause(self, seconds: float) -> None:
        """Waits before the next start, so that a lost store or service can come back."""
        if seconds:
            _log.warning("no new checkpoint since the last restart: waiting %.0f s before the next one", seconds)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._end_if_asked()
            time.sleep(_POLL_SECONDS)

    def _wait_for_slots(self, workers: int) -> tuple[Host, ...]:
        """Waits until there are hosts for this number of workers, and returns them."""
        began, told = time.monotonic(), False
        while True:
            self._end_if_asked()
            if placed := self._choose(workers):
                return placed
            hosts = self._hosts.now()
            if time.monotonic() - began > self._flags.elastic_timeout:
                raise UserError(
                    f"{listed(hosts)} has had fewer slots than the required {workers} workers for longer than "
                    f"--elastic-timeout={self._flags.elastic_timeout:g} s"
                )
            if not told:
                _log.warning("waiting for %d slots: available is %s", workers, listed(hosts))
                told = True
            time.sleep(_POLL_SECONDS)

    def _take_signal(self, number: int, frame: FrameType | None) -> None:
        self._asked = number

    def _end_if_asked(self, attempt: Attempt | None = None) -> None:
        """Ends the workers and raises StoppedInOrder if a signal was received."""
        if self._asked is None:
            return
        if attempt is not None:
            attempt.terminate()
            if attempt.end(self._grace_seconds).kind is Kind.FINISHED:
                return
        said = attempt.output.said if attempt is not None else ""
        text = f"stopped by {stop_signals.name_of(self._asked)}. {where_it_resumes(self._model_dir)}"
        raise StoppedInOrder(said or text, self._asked)
