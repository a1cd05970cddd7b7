"""Keeps a training running: starts its workers, decides whether and when to restart them, and on which hosts."""

import collections
import contextlib
import logging
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType

from ctr_trainer.launch.attempt import Attempt, Ending, Kind
from ctr_trainer.launch.hosts import Host, Hosts, filled, host_of, listed, slots
from ctr_trainer.launch.progress import Reached, Restart, Saved, add_to_summary, summary_stamp, where_it_resumes
from ctr_trainer.ranks import meetings
from ctr_trainer.ranks.endings import records
from ctr_trainer.settings.command_flags import LaunchFlags
from ctr_trainer.system.files.temporary import temporary_directory
from ctr_trainer.system.messages.errors import StoppedInOrder, UserError, followed
from ctr_trainer.system.processes import child, reach

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.1
# If a worker fails, horovodrun stops the other workers. This takes a second, or 10 s if one of them hangs.
_ENDING_SECONDS, _KNOWN_SECONDS = 3.0, 0.5
# A host that has not answered for this time counts as lost.
_SILENT_SECONDS = 3.0
# A host with so many failures is used only if the other hosts have too few slots.
_MOST_FAILURES = 2
# A training that ends sooner does not need standby workers.
_STANDBY_SECONDS = 10.0


class Patience:
    """Counts the restarts since the last new checkpoint, of which there are at most `most`."""

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
        return 0.0 if self._fruitless < 2 else min(5.0 * 2 ** (self._fruitless - 2), 60.0)

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


class Supervisor:
    """Starts the workers of one training, and restarts them as often as needed.

    `again` replaces `command` once the workers have trained. `environment` is the complete environment of each worker,
    which may take `grace_seconds` to save and end.
    """

    def __init__(
        self,
        flags: LaunchFlags,
        hosts: Hosts,
        command: Sequence[str],
        again: Sequence[str],
        environment: Mapping[str, str],
        model_dir: str,
        grace_seconds: float,
    ) -> None:
        self._flags, self._hosts, self._command, self._again = flags, hosts, command, again
        self._environment, self._model_dir, self._grace_seconds = environment, model_dir, grace_seconds
        self._patience = Patience(flags.max_restarts)
        # The failures of each host since it took part in a training that wrote a checkpoint.
        self._failures: collections.Counter[str] = collections.Counter()
        self._restarts: list[Restart] = []
        self._asked: int | None = None
        # Workers for the next restart have imported all modules and wait, which halves the time of a restart.
        self._standby: Attempt | None = None
        self._job = secrets.token_hex(16)
        self._errors = ""  # The directory to which the workers write why they end.

    def run(self) -> None:
        """Runs the training to its end; call it in the main thread.

        Raises UserError with their error and the reason if the workers are not restarted, and StoppedInOrder if they
        have ended because of SIGTERM or SIGINT.
        """
        summary, saved = summary_stamp(self._model_dir), Saved.newest(self._model_dir) or Saved()
        with (
            child.handling_signals(self._take_signal),
            temporary_directory() as self._errors,
            contextlib.closing(self),
        ):
            placed = self._wait_for_slots(self._flags.np)
            while True:
                attempt = self._take_standby(placed) or self._start(placed)
                reached = Reached(self._model_dir, attempt, saved)
                ending, saved = self._watch(attempt, reached), reached.saved
                if ending.kind is Kind.FINISHED:
                    break
                if ending.kind is not Kind.CHANGED and (why_not := self._patience.why_not(ending)):
                    raise UserError(followed(ending.reason, why_not))
                if ending.rank is not None and len(attempt.hosts) > 1:
                    name = host_of(attempt.hosts, ending.rank)
                    self._failures[name] += 1
                    if self._failures[name] == _MOST_FAILURES:
                        _log.warning("%s has failed again: left out from now on if the others are enough", name)
                if pause := self._patience.pause_seconds:  # A lost store or service can come back.
                    _log.warning("no new checkpoint since the last restart: waiting %.0f s before the next one", pause)
                deadline = time.monotonic() + pause
                while time.monotonic() < deadline:
                    self._end_if_asked()
                    time.sleep(_POLL_SECONDS)
                placed = self._wait_for_slots(self._flags.fewest)
                self._restarts.append(reached.restart(ending.reason, placed))
                _log.warning("restart %d: %s", len(self._restarts), self._restarts[-1].line())
        if self._restarts:
            add_to_summary(self._model_dir, self._restarts, summary)

    def close(self) -> None:
        """Ends the standby workers."""
        if self._standby is not None:
            self._standby.end(0.0)
            self._standby = None

    def _take_standby(self, hosts: tuple[Host, ...]) -> Attempt | None:
        """Releases the standby workers if they are on these hosts, and otherwise ends them."""
        standby = self._standby
        if standby is None or standby.hosts != hosts or standby.has_ended:
            self.close()
            return None
        self._standby = None
        standby.release()
        return standby

    def _start(self, hosts: tuple[Host, ...], waits: bool = False) -> Attempt:
        """Returns an `Attempt`. If its workers wait, its name contains the number of the next restart."""
        name = f"{self._job}.{len(self._restarts) + waits}"
        return Attempt(name, hosts, self._command, self._flags, self._environment, self._errors, waits)

    def _watch(self, attempt: Attempt, reached: Reached) -> Ending:
        """Waits until all processes of the attempt on this host have ended, and returns the `Ending`."""
        while not attempt.has_ended:
            self._end_if_asked(attempt)
            # Without the lost rank, the other ranks cannot save, so a long wait is useless.
            if attempt.lost_at is not None:
                seconds = _KNOWN_SECONDS if attempt.records() else _ENDING_SECONDS
                if time.time() - attempt.lost_at > seconds:
                    break
            silent = [host.name for host in attempt.hosts if self._hosts.silent_for(host.name) > _SILENT_SECONDS]
            if silent:
                attempt.end(0.0)
                self._note(attempt, reached, is_last=True)
                return Ending(Kind.LOST, f"{silent[0]} no longer answers")
            if self._note(attempt, reached) and (change := self._change(attempt)):
                attempt.terminate()
                attempt.end(self._grace_seconds)
                self._note(attempt, reached, is_last=True)
                return Ending(Kind.CHANGED, change)
            self._prepare_standby(reached)
            time.sleep(_POLL_SECONDS)
        ending = attempt.end(0.0)
        self._note(attempt, reached, is_last=True)
        return ending

    def _note(self, attempt: Attempt, reached: Reached, is_last: bool = False) -> bool:
        """Records the progress of the training. Returns whether there is a new checkpoint."""
        is_new = reached.look(is_last)
        if is_new:
            self._patience.new_checkpoint()
            for host in attempt.hosts:
                self._failures.pop(host.name, None)
        if is_new or reached.trained:
            self._command = self._again
        last: Restart | None = self._restarts[-1] if self._restarts else None
        if last and last.seconds_to_train_again is None and reached.trained > (last.step or 0):
            last.seconds_to_train_again = round(reached.trained_at - last.lost_at, 1)
            _log.info("training again after %.1f s, at step %d", last.seconds_to_train_again, reached.trained)
        return is_new

    def _prepare_standby(self, reached: Reached) -> None:
        """Starts standby workers on this host, for the failure of a worker on this host or of all other hosts."""
        # After a restart, another failure may soon follow.
        seconds = 0.0 if self._restarts else _STANDBY_SECONDS
        if self._standby is not None or not reached.trains_for(seconds):
            return
        here = [host for host in self._reliable(self._hosts.now()) if reach.is_here(host.name)]
        placed = filled(here, self._flags.most)
        if slots(placed) >= self._flags.fewest:
            self._standby = self._start(placed, waits=True)

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
        for some in (self._reliable(hosts), hosts):
            placed = filled(some, self._flags.most)
            if slots(placed) >= workers:
                return placed
        return ()

    def _reliable(self, hosts: Iterable[Host]) -> tuple[Host, ...]:
        """Returns the hosts that have not failed repeatedly."""
        return tuple(host for host in hosts if self._failures[host.name] < _MOST_FAILURES)

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
            for record in attempt.records():
                if record.kind is records.RecordKind.IN_ORDER:
                    raise StoppedInOrder(record.message, self._asked)
        text = f"stopped by {meetings.name_of(self._asked)}. {where_it_resumes(self._model_dir)}"
        raise StoppedInOrder(text, self._asked)
