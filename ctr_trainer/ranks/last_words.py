"""Reports why a job ends: one sentence from one rank, without the tracebacks of the others."""

import contextlib
import functools
import logging
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator

from ctr_trainer.ranks import stop_signals
from ctr_trainer.ranks.notices import Notices, Placement, RollCall
from ctr_trainer.ranks.stop_signals import StopSignals, Terminated
from ctr_trainer.system.messages import errors, log_lines
from ctr_trainer.system.messages.errors import StoppedInOrder, end_of, reason
from ctr_trainer.system.processes.waiting import call_within

TRACEBACKS = "CTR_TRAINER_TRACEBACKS"
_CLAIM, _SAID = "last_words", "said"
# Ranks that fail at the same time all make their claims within this time; the last claim is valid.
_SETTLE_SECONDS = 0.5
# A rank that is not on horovodrun's host waits this long, so that a rank on that host can report first.
_UNHEARD_SECONDS = 2.0
_RESUME_TEXT_SECONDS = 1.5
# horovodrun kills a process 5 s after SIGTERM.
_SAY_SECONDS = 4.5
_NOT_SAVED_YET = (
    "received a signal to end 4 s ago, and is still saving. If horovodrun received the signal as well, it kills its "
    "workers 5 s after it, and the last steps are lost"
)
_log = logging.getLogger(__name__)
_PATIENCE_SECONDS, _POLL_SECONDS = 15.0, 0.1
# The maximum number of requests per second that all ranks together send to the server of the notices.
_ASKED_A_SECOND = 200
_OF_ANOTHER_RANK = re.compile(r"Horovod has been shut down|HorovodInternalError|gloo/transport|rank \d+ has ended, and")


class LastWords:
    """Reports once why a job ends.

    The rank that fails first claims the report when its error is raised. At this time its connections are still open,
    so no other rank has failed because of it. A rank that fails because another rank has ended finds the claim, does
    not report, and waits until `horovodrun` ends it. If a rank was killed before it could claim the report, a rank on
    the host of `horovodrun` reports. The output of ranks on other hosts would be lost, because `horovodrun` first
    closes its connections to them.

    If a training has stopped in order, the report is the same on all ranks, and the first rank on the host of
    `horovodrun` makes it. The other ranks end later, because `horovodrun` ends all ranks when one has ended.

    Attributes:
      model_dir: directory for the traceback of an unexpected error. If it does not exist, the traceback is printed.
      resume_text: f() -> a sentence that says what the same command would do next; None if there is nothing to resume.
    """

    _in_order: BaseException | None

    def __init__(self, notices: Notices, placement: Placement) -> None:
        self._notices, self._placement, self._rank, self._size = notices, placement, placement.rank, placement.size
        self._roll_call = RollCall(notices, placement)
        # If there are several ranks, signals after the end of the work come from horovodrun. They are ignored, because
        # the reason was already reported.
        self.signals = StopSignals(
            self._say_of_signal, self._warn_of_launcher, self._roll_call.is_one_lost, is_ignored_after=self._size > 1
        )
        self._forget()
        self._lock, self.model_dir = threading.RLock(), ""
        self.resume_text: Callable[[], str] | None = None

    def sign(self, secret: str) -> None:
        """Signs the notices of this rank, see `Notices.sign`."""
        self._notices.sign(secret)
        self._roll_call.introduce()

    def is_one_lost(self) -> bool:
        """Whether a rank has ended without an error message. Call it only while no rank may end in order."""
        return self._roll_call.is_one_lost()

    @contextlib.contextmanager
    def claimed_on_error(self) -> Iterator[None]:
        """Claims the report as soon as the block raises; if a training has stopped in order, reports immediately."""
        try:
            yield
        except StoppedInOrder as error:
            if self._speaks_in_order:
                self._say_of(error)  # This process still has files to close, and horovodrun may end it before that.
            raise
        except Exception as error:
            self._claim(error)
            raise

    def stops_in_order(self, error: StoppedInOrder) -> None:
        """Makes signals report this error, which the process will raise after closing its files.

        All ranks call this method after the training has stopped and is saved, and before any of them may end.
        """
        self._in_order, self.signals.is_saved = error, True
        if self._size > 1:
            self._roll_call.leave()

    def run(self, function: Callable[[], object], takes_signals: bool = True) -> int:
        """Calls a function. If it raises, or if a signal ends the process, reports why the process ends.

        Args:
          takes_signals: whether `StopSignals` handles SIGTERM and SIGINT; False if the function handles them.

        Returns:
          the exit status: 0, or a status of `messages.errors`.
        """
        if self._size == 1:
            self._forget()  # An earlier call in this process may have reported.
        else:
            stop_signals.delay_abort()
        with self.signals.handled() if takes_signals else contextlib.nullcontext():
            try:
                function()
            except Terminated:
                self._say_of_signal(signal.SIGTERM)
                return errors.TERMINATED
            except KeyboardInterrupt as error:
                self.of(error)
                return errors.INTERRUPTED
            except Exception as error:
                self.of(error)
                return errors.LOST if self._is_of_another_rank(error) else end_of(error).status
        return 0

    def of(self, error: BaseException) -> None:
        """Reports the exception that ends this rank."""
        if end_of(error).is_in_order and not self._speaks_in_order:
            self._wait_until_said()
        self._claim(error)
        if os.environ.get(TRACEBACKS):
            traceback.print_exception(error)
        if not self._say_of(error) and not end_of(error).is_in_order:
            if not self._is_of_another_rank(error) and not self._is_said:
                self._keep(error)
            if not self.signals.have_come:  # Otherwise horovodrun has already asked this rank to end.
                time.sleep(_PATIENCE_SECONDS)
        if end_of(error).is_in_order and self._size > 1:
            self._notices.put(_SAID, "")

    def say(self, text: str) -> None:
        """Reports a sentence, followed by `resume_text`, unless another rank has reported."""
        self._roll_call.end()
        if not self._say_once(lambda: self._with_resume_text(text)):
            time.sleep(2 * _SETTLE_SECONDS)

    def _forget(self) -> None:
        self._is_ours: bool | None = None
        self._error: BaseException | None = None
        self._in_order = None
        self._is_said = self._over = self.signals.has_failed = self.signals.is_saved = False

    @property
    def _speaks_in_order(self) -> bool:
        """Whether this rank reports that the training has stopped in order."""
        return self._size == 1 or self._placement.is_first_of_host and self._notices.is_here()

    def _wait_until_said(self) -> None:
        """Waits at most 15 s until the rank that reports an orderly stop has closed its files."""
        # If no rank is on the host of horovodrun, rank 0 reports.
        deadline = time.monotonic() + (_UNHEARD_SECONDS if self._rank == 0 else _PATIENCE_SECONDS)
        while self._notices.get(_SAID) is None and time.monotonic() < deadline:
            time.sleep(max(_POLL_SECONDS, self._size / _ASKED_A_SECOND))

    def _claim(self, error: BaseException | None = None) -> bool:
        """Claims the report unless another rank has claimed it; returns whether this rank's claim is valid."""
        with self._lock:
            is_in_order = end_of(error).is_in_order
            if is_in_order:
                self._in_order = error
            elif self._error is None and error is not None:
                self._error, self.signals.has_failed = error, True
            if self._is_ours is None:
                if error is not None and self._is_of_another_rank(error):
                    self._roll_call.end()
                    time.sleep(0.0 if self._notices.is_here() else _UNHEARD_SECONDS)
                claim = f"rank {self._rank}: {error}"
                if self._size > 1 and not self._notices.get(_CLAIM):
                    self._notices.put(_CLAIM, claim)
                    if not (is_in_order and self._speaks_in_order):
                        time.sleep(_SETTLE_SECONDS)
                found = self._notices.get(_CLAIM) if self._size > 1 else claim
                self._is_ours = not found or found == claim
                self._is_said = found is not None and not self._is_ours and found.partition(": ")[2] == str(error)
            return self._is_ours

    def _say_of(self, error: BaseException) -> bool:
        """Reports an exception; returns whether this rank reports, or has reported."""
        self._claim(error)
        level = logging.INFO if end_of(error).is_in_order else logging.ERROR
        return self._say_once(lambda: self._sentence(error), level)

    def _say_once(self, make: Callable[[], str], level: int = logging.ERROR) -> bool:
        """Prints the result of `make` once, if this rank's claim is valid; returns whether the claim is valid."""
        with self._lock:
            if self._claim() and not self._over:
                self._over = True
                with contextlib.suppress(OSError):  # horovodrun was killed, so the output is lost.
                    print(log_lines.last_line(make(), level), file=sys.stderr, flush=True)
            return bool(self._is_ours)

    def _sentence(self, error: BaseException) -> str:
        if self._is_of_another_rank(error):
            lost = self._roll_call.lost()
            return self._with_resume_text(lost or f"the connection to another rank is lost: {reason(error)}")
        if told := end_of(error).told:
            return told
        if isinstance(error, KeyboardInterrupt):
            return self._with_resume_text("interrupted")
        kept = self._keep(error)
        text = f"{type(error).__name__}: {reason(error)}{_place(error)}"
        return self._with_resume_text(f"{text}; its traceback is {f'in {kept}' if kept else 'above'}")

    def _with_resume_text(self, text: str) -> str:
        if self.resume_text is None:
            return text
        try:
            return f"{text}. {call_within(_RESUME_TEXT_SECONDS, self.resume_text)}"
        except Exception:  # `resume_text` may fail with the same disk error that ends the job.
            return text

    def _is_of_another_rank(self, error: BaseException) -> bool:
        is_expected = bool(end_of(error).told) or isinstance(error, KeyboardInterrupt)
        return self._size > 1 and not is_expected and _OF_ANOTHER_RANK.search(str(error)) is not None

    def _keep(self, error: BaseException) -> str:
        """Writes the traceback to a file, and returns the file's path; "" if the traceback was printed."""
        lines = traceback.format_exception(error)
        path = os.path.join(self.model_dir, f"error-rank{self._rank}.txt")
        try:
            if not os.path.isdir(self.model_dir):
                raise FileNotFoundError
            with open(path, "w") as file:
                file.writelines([time.strftime("%Y-%m-%d %H:%M:%S "), " ".join(sys.argv), "\n", *lines])
        except OSError:
            print("".join(lines), end="", file=sys.stderr)
            return ""
        return path

    def _say_of_signal(self, number: int, late: str = "") -> None:
        call_within(_SAY_SECONDS, lambda: self._of_signal(number, late))

    def _of_signal(self, number: int, late: str) -> None:
        self._roll_call.end()
        with self._lock:
            if error := self._error or self._in_order:  # The main thread is still closing files.
                self._say_of(error)
            else:
                self._say_once(lambda: self._with_resume_text(self._roll_call.lost() or self._stopped(number, late)))

    def _stopped(self, number: int, late: str) -> str:
        how = f"stopped by {stop_signals.name_of(number)}"
        if late:
            return f"{how}; {late}"
        if self._size == 1 or number == signal.SIGINT:
            return how
        if unheard := self._roll_call.unheard():
            return unheard
        how = f"{how}: Ctrl-C at horovodrun, a scheduler, or by hand"
        return how if self._placement.is_on_one_host else f"{how}; or a worker of another host has ended"

    def _warn_of_launcher(self) -> None:
        """Warns that horovodrun may soon kill this process, which is still writing a checkpoint."""
        if self._rank == 0 and self._notices.address and not (self._error or self._in_order):
            _log.warning("%s", self._with_resume_text(_NOT_SAVED_YET))


@functools.cache
def of_this_process() -> LastWords:
    """Returns the `LastWords` of this process, with rank and size from the environment of `horovodrun`."""
    return LastWords(Notices.of_this_job(), Placement.of_this_process())


def _place(error: BaseException) -> str:
    """Returns ` (FILE:LINE)` for the last line of the traceback outside libraries; "" if there is none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    places = [frame for frame in frames if not re.search(r"^<|site-packages|lib/python", frame.filename)]
    return f" ({places[-1].filename}:{places[-1].lineno})" if places else ""
