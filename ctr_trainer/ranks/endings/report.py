"""Reports why a job ends: one sentence from one rank, without the tracebacks of the others."""

import contextlib
import dataclasses
import functools
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator

from ctr_trainer.ranks import meetings
from ctr_trainer.ranks.endings.records import SETTLE_SECONDS, EndRecord, RecordExchange, RecordKind, first_cause
from ctr_trainer.ranks.meetings import StopSignals, Terminated
from ctr_trainer.ranks.notices import Notices, Placement
from ctr_trainer.system.messages import errors, log_lines
from ctr_trainer.system.messages.errors import StoppedInOrder, UserError, reason
from ctr_trainer.system.processes.waiting import call_within

TRACEBACKS = "CTR_TRAINER_TRACEBACKS"
_SAID, _CLOSED = "said", "closed"
_RESUME_TEXT_SECONDS = 1.5
# horovodrun kills a process 5 s after SIGTERM.
_SAY_SECONDS = 4.5
_PATIENCE_SECONDS = 15.0
_OF_ANOTHER_RANK = re.compile(r"Horovod has been shut down|HorovodInternalError|gloo/transport|rank \d+ has ended, and")


class EndReport:
    """Reports once why a job ends.

    A rank that fails writes an `EndRecord` when its error is raised, for the other ranks, and for `launch` if it has
    started the job. The earliest record whose cause is not another rank is reported by its rank. The others wait until
    `horovodrun` ends them. For a rank that was killed, another rank of its host writes the record. The first rank on
    the host of `horovodrun` reports it, because the output of ranks on other hosts would be lost. If a training has
    stopped in order, rank 0 reports this and ends first, because `horovodrun` ends all ranks when one has ended.

    `directory`: for `error-rankR.json`, the record of an unexpected error with its traceback. If the directory does not
    exist, the traceback is printed. Also an attribute, which a training sets.

    Attributes:
      resume_text: f() -> a sentence that says what the same command would do next; None if there is nothing to resume.
      explain: f() -> the ranks that this rank waits for, in parentheses; "" if none is known.
      signals: the `StopSignals` of this process.
    """

    def __init__(self, directory: str = "") -> None:
        self._notices, self._placement = Notices.of_this_job(), Placement.of_this_process()
        self._rank, self._size = self._placement.rank, self._placement.size
        self._exchange = RecordExchange(self._notices, self._placement)
        # If there are several ranks, signals after the end of the work come from horovodrun. They are ignored, because
        # the reason was already reported.
        self.signals = StopSignals(self._say_of_signal, self.is_one_lost, is_ignored_after=self._size > 1)
        self.directory = directory
        self.resume_text: Callable[[], str] | None = None
        self.explain: Callable[[], str] = str
        self._own: EndRecord | None = None
        self._speaks: bool | None = None
        self._is_complete = self._is_over = False
        self._lock = threading.RLock()

    def run(self, function: Callable[[], object], takes_signals: bool = True) -> int:
        """Calls a function and returns the exit status. If it raises or a signal ends it, reports why the process ends.

        `takes_signals`: whether `StopSignals` handles SIGTERM and SIGINT; False if the function handles them.
        """
        if self._size > 1:
            meetings.delay_abort()
            self._notices.put(f"process.{self._rank}", f"{os.getpid()} {socket.gethostname()}")
        _running.append(self)
        try:
            with self.signals.handled() if takes_signals else contextlib.nullcontext():
                try:
                    function()
                except Terminated:
                    self._say_of_signal(signal.SIGTERM)
                    return errors.TERMINATED
                except (Exception, KeyboardInterrupt) as error:
                    return self._end_by(error)
        finally:
            _running.remove(self)
        if self._size > 1:
            self._exchange.put(self._record("finished", RecordKind.FINISHED, 0))
        return 0

    @contextlib.contextmanager
    def recording_errors(self) -> Iterator[None]:
        """Records an error as soon as the block raises it, while the connections to other ranks are still open.

        Without `run`, the process may continue, so the error is forgotten at the end of the block.
        """
        try:
            yield
        except Exception as error:
            self._note(error)
            if self._is_in_order and self._rank == 0:
                self._say_in_order()  # This process still has files to close, and horovodrun may end it before that.
            raise
        finally:
            if self not in _running:
                self._own = None

    def stops_in_order(self, error: StoppedInOrder) -> None:
        """Makes signals report this error, which the process will raise after closing its files.

        All ranks call it when the training is saved, before any of them may end.
        """
        self._own = self._record_of(error)
        self.signals.is_saved = True

    def say(self, text: str) -> None:
        """Records and reports a sentence, followed by `resume_text`, unless the cause is in another rank."""
        self._set(self._record(text, RecordKind.CAUSE, errors.LOST))
        if not self._report():
            time.sleep(2 * SETTLE_SECONDS)  # The rank that reports ends first.

    def is_one_lost(self) -> bool:
        """Whether a rank was killed or has failed. Call it only while no rank may end in order."""
        self.record_killed()
        return self._exchange.has_cause()

    def record_killed(self) -> None:
        """Records ranks of this host that were killed, which the ranks of other hosts cannot see."""
        self._exchange.put_killed(self._record("", RecordKind.OTHER_RANK, errors.LOST))

    def _end_by(self, error: BaseException) -> int:
        """Reports the exception that ends this process; returns the exit status."""
        if os.environ.get(TRACEBACKS):
            traceback.print_exception(error)
        record = self._note(error)
        if record.kind is RecordKind.CAUSE and isinstance(error, UserError) and str(error) != record.message:
            record = dataclasses.replace(record, message=str(error))  # Now it names the last checkpoint.
            self._set(record)
        if self._is_in_order:
            # Rank 0, which reports a stop in order, closes its files first.
            deadline = time.monotonic() + _PATIENCE_SECONDS * (self._rank > 0)
            while time.monotonic() < deadline and self._notices.get(_CLOSED) is None:
                time.sleep(self._exchange.poll_seconds)
            self._say_in_order()
            self._notices.put(_CLOSED, "")
        elif not self._report() and self.signals.first is None:  # Otherwise horovodrun already ends this rank.
            time.sleep(_PATIENCE_SECONDS)
        return record.status

    def _note(self, error: BaseException) -> EndRecord:
        """Writes the record of the first error of this process, and returns it."""
        with self._lock:
            if self._own is None or self._is_in_order:  # The closing of files may fail after a stop in order.
                self._set(self._record_of(error))
            assert self._own is not None
            return self._own

    def _record_of(self, error: BaseException) -> EndRecord:
        if isinstance(error, StoppedInOrder):
            return self._record(str(error), RecordKind.IN_ORDER, error.status)
        if isinstance(error, KeyboardInterrupt):
            return self._record("interrupted", RecordKind.SIGNAL, errors.INTERRUPTED)
        if isinstance(error, UserError):
            self._is_complete = True
            return self._record(str(error), RecordKind.CAUSE, errors.status_of(error))
        if self._size > 1 and _OF_ANOTHER_RANK.search(str(error)):
            text = f"the connection to another rank is lost: {reason(error)}"
            return self._record(text, RecordKind.OTHER_RANK, errors.LOST)
        lines = traceback.format_exception(error)
        text = f"{type(error).__name__}: {reason(error)}{_place(error)}"
        record = self._record(text, RecordKind.CAUSE, errors.status_of(error))
        path = dataclasses.replace(record, traceback=tuple("".join(lines).splitlines())).write(self.directory)
        if not path:
            print("".join(lines), end="", file=sys.stderr)
        return dataclasses.replace(record, message=f"{text}; its traceback is {f'in {path}' if path else 'above'}")

    @property
    def _is_in_order(self) -> bool:
        return self._own is not None and self._own.kind is RecordKind.IN_ORDER

    def _record(self, message: str, kind: RecordKind, status: int) -> EndRecord:
        return EndRecord.new(message, kind, status, self._rank, self._notices.is_here())

    def _set(self, record: EndRecord) -> None:
        """Makes a record the record of this process, and writes it."""
        self._own = record
        self.signals.has_failed = record.kind < RecordKind.SIGNAL
        self._exchange.put(record)

    def _report(self) -> bool:
        """Finds the first cause, and reports it if this rank is the one that reports; returns whether it is."""
        with self._lock:
            if self._speaks is not None or self._own is None:
                return bool(self._speaks)
            records = self._exchange.all(self._own)
            first = first_cause(records)
            if first.kind is RecordKind.CAUSE and not first.is_of_killed:
                speaker = first.rank
            else:
                living = [each for each in records if not each.is_of_killed and each.kind is not RecordKind.FINISHED]
                speaker = min(living, key=lambda record: (not record.is_here, record.rank)).rank
            if first is not self._own:
                self._exchange.pass_on(first)  # Its rank may be on another host than the launcher.
            self._speaks = speaker == self._rank
            if self._speaks:
                unheard = self._exchange.unheard() if first.kind is RecordKind.SIGNAL and self._size > 1 else ""
                text = unheard or first.message
                if self.resume_text is not None and not self._is_complete:
                    with contextlib.suppress(Exception):  # It may fail with the same disk error that ends the job.
                        text = errors.followed(text, call_within(_RESUME_TEXT_SECONDS, self.resume_text))
                self._say(text)
            return self._speaks

    def _say(self, text: str, level: int = logging.ERROR) -> None:
        """Prints the sentence, unless this or another rank has printed one."""
        if self._is_over or self._size > 1 and self._notices.get(_SAID) is not None:
            return
        self._is_over = True
        self._notices.put(_SAID, str(self._rank))
        with contextlib.suppress(OSError):  # horovodrun was killed, so the output is lost.
            print(log_lines.last_line(text, level), file=sys.stderr, flush=True)

    def _say_in_order(self) -> None:
        with self._lock:
            assert self._own is not None
            self._say(self._own.message, logging.INFO)

    def _say_of_signal(self, number: int, late: str = "") -> None:
        call_within(_SAY_SECONDS, lambda: self._of_signal(number, late))

    def _of_signal(self, number: int, late: str) -> None:
        with self._lock:
            if self._own is None:
                self._set(self._record(self._stopped(number, late), RecordKind.SIGNAL, 128 + number))
            if not self._is_in_order:
                self._report()
                return
            time.sleep(SETTLE_SECONDS * (self._rank > 0))
            self._say_in_order()

    def _stopped(self, number: int, late: str) -> str:
        how = f"stopped by {meetings.name_of(number)}"
        if late:
            return f"{how}; {late}{self.explain()}"
        if self._size == 1 or number == signal.SIGINT:
            return how
        how = f"{how}: Ctrl-C at horovodrun, a scheduler, or by hand"
        return how if self._placement.is_on_one_host else f"{how}; or a worker of another host has ended"


_running: list[EndReport] = []


def running() -> EndReport:
    """Returns the `EndReport` whose `run` is active; in a program without `run`, one for the watchdog."""
    return _running[-1] if _running else _of_this_process()


_of_this_process = functools.cache(EndReport)


def has_run() -> bool:
    """Returns whether a `run` is active, as in each command. Otherwise the process continues after a training."""
    return bool(_running)


def _place(error: BaseException) -> str:
    """Returns ` (FILE:LINE)` for the last line of the traceback outside libraries; "" if there is none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    places = [frame for frame in frames if not re.search(r"^<|site-packages|lib/python", frame.filename)]
    return f" ({places[-1].filename}:{places[-1].lineno})" if places else ""
