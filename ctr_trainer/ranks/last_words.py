"""The last words of a job: one sentence that says why it ends, from one rank, without the tracebacks of the others."""

import contextlib
import functools
import os
import re
import signal
import sys
import threading
import time
import traceback

from ctr_trainer.messages import log_lines
from ctr_trainer.messages.errors import message, reason
from ctr_trainer.processes.deadline import within
from ctr_trainer.ranks.notices import Notices
from ctr_trainer.ranks.placement import Placement
from ctr_trainer.ranks.roll_call import RollCall

TRACEBACKS = "CTR_TRAINER_TRACEBACKS"
_CLAIM = "last_words"
# Ranks that fail at the same moment all claim the word within this time; the last claim stays.
_SETTLE_SECONDS = 0.5
# A rank on another host than horovodrun waits this long, so that a rank on horovodrun's host can speak first.
_UNHEARD_SECONDS = 2.0
_GOING_ON_SECONDS = 1.5
# horovodrun kills a process 5 s after it has asked it to end.
_SAY_SECONDS = 4.5
_PATIENCE_SECONDS = 15.0
_OF_ANOTHER_RANK = re.compile(r"Horovod has been shut down|HorovodInternalError|gloo/transport|rank \d+ has ended, and")


class LastWords:
    """Says why a job ends, once.

    The rank that fails first claims the word where its error is raised, before it closes a connection, so before the
    others can notice. A rank that fails since another one has ended finds the claim, keeps silent, and waits for
    `horovodrun` to end it. Of a rank that was killed, and claimed nothing, one of the others speaks: one on the host of
    `horovodrun`, which closes its connections to the other hosts first, so that nobody would hear their ranks.

    Args:
      notices: `Notices` of the job.
      placement: `Placement` of this process.

    Attributes:
      model_dir: where the traceback of an unexpected error is kept; it is printed where there is no such directory.
      going_on: f() -> a sentence on what the same command would do now; None where there is nothing to go on with.
    """

    def __init__(self, notices, placement):
        self._notices, self._rank, self._size = notices, placement.rank, placement.size
        self._is_one_host = placement.is_on_one_host
        self._roll_call = RollCall(notices, placement)
        self._lock = threading.RLock()
        self._forget()
        self.model_dir, self.going_on = "", None

    @contextlib.contextmanager
    def claimed_on_error(self):
        """Claims the word as soon as the body of the `with` statement raises."""
        try:
            yield
        except Exception as error:
            self._claim(error)
            raise

    def take_back(self):
        """Gives the word back: the job goes on after an error, and all ranks know that."""
        with self._lock:
            if self._size > 1 and self._is_ours:
                self._notices.put(_CLAIM, "")
            self._forget()

    def run(self, function, takes_sigterm=True):
        """Calls the function; if it raises, or on SIGTERM, says why the process ends.

        Args:
          function: f(), the whole work of the process.
          takes_sigterm: whether SIGTERM is handled here; False if the function handles it.

        Returns:
          the exit status: 0, 1 after an exception, or 130 after Ctrl-C.
        """
        if self._size == 1:
            self._forget()  # Another call in this process may have spoken.
        with self._on_sigterm() if takes_sigterm else contextlib.nullcontext():
            try:
                function()
            except KeyboardInterrupt as error:
                self.of(error)
                return 130
            except Exception as error:
                self.of(error)
                return 1
        return 0

    @contextlib.contextmanager
    def _on_sigterm(self):
        """Has SIGTERM end the process with a sentence within the block, whatever its main thread waits for."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # Python runs handlers in the main thread, which may be inside TensorFlow. Only the signal's number is written
        # at once; a thread reads it.
        read, write = os.pipe()
        os.set_blocking(write, False)
        handler = signal.signal(signal.SIGTERM, lambda *_: None)
        before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        threading.Thread(target=self._await_sigterm, args=[read], name="last words", daemon=True).start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            # A rank of several is at its end: if horovodrun ends it now, the reason has been said.
            signal.signal(signal.SIGTERM, handler if self._size == 1 else signal.SIG_IGN)
            os.close(write)

    def of(self, error):
        """Says which exception ends this rank."""
        self._claim(error)
        if os.environ.get(TRACEBACKS):
            traceback.print_exception(error)
        if not self._say_once(lambda: self._sentence(error)):
            if not self._is_of_another_rank(error) and not self._is_said:
                self._keep(error)
            time.sleep(_PATIENCE_SECONDS)

    def say(self, text):
        """Says a sentence, and what the same command would do now, unless another rank has spoken."""
        if not self._say_once(lambda: self._with_going_on(text)):
            time.sleep(2 * _SETTLE_SECONDS)

    def _forget(self):
        self._is_ours = self._error = None
        self._is_said = self._over = False

    def _claim(self, error=None):
        """-> whether this rank has the word."""
        with self._lock:
            if self._error is None:
                self._error = error
            if self._is_ours is None:
                if error is not None and self._is_of_another_rank(error):
                    self._roll_call.end()
                    time.sleep(0.0 if self._notices.is_here() else _UNHEARD_SECONDS)
                claim = f"rank {self._rank}: {error}"
                if self._size > 1 and not self._notices.get(_CLAIM):
                    self._notices.put(_CLAIM, claim)
                    time.sleep(_SETTLE_SECONDS)
                found = self._notices.get(_CLAIM) if self._size > 1 else claim
                self._is_ours = not found or found == claim
                self._is_said = not self._is_ours and found.partition(": ")[2] == str(error)
            return self._is_ours

    def _say_once(self, make):
        """-> whether this rank speaks, or has spoken."""
        with self._lock:
            if self._claim() and not self._over:
                self._over = True
                print(log_lines.error_line(make()), file=sys.stderr, flush=True)
            return self._is_ours

    def _sentence(self, error):
        if self._is_of_another_rank(error):
            lost = self._roll_call.lost()
            return self._with_going_on(lost or f"the connection to another rank is lost: {reason(error)}")
        if told := message(error):
            return told
        if isinstance(error, KeyboardInterrupt):
            return self._with_going_on("interrupted")
        kept = self._keep(error)
        text = f"{type(error).__name__}: {reason(error)}{_place(error)}"
        return self._with_going_on(f"{text}; its traceback is {f'in {kept}' if kept else 'above'}")

    def _with_going_on(self, text):
        if self.going_on is None:
            return text
        try:
            return f"{text}. {within(_GOING_ON_SECONDS, self.going_on)}"
        except Exception:  # The error may be about the disk that `going_on` reads.
            return text

    def _is_of_another_rank(self, error):
        is_expected = message(error) or isinstance(error, KeyboardInterrupt)
        return self._size > 1 and not is_expected and _OF_ANOTHER_RANK.search(str(error)) is not None

    def _keep(self, error):
        """Keeps the traceback. -> the file that it is in; "" if it was printed."""
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

    def _await_sigterm(self, read):
        while number := os.read(read, 1):
            if number[0] == signal.SIGTERM:
                try:
                    within(_SAY_SECONDS, self._of_sigterm)
                finally:
                    os._exit(128 + signal.SIGTERM)
        os.close(read)

    def _of_sigterm(self):
        self._roll_call.end()
        with self._lock:
            if self._error is not None:  # The main thread has an error, and is still closing what is open.
                self._say_once(lambda: self._sentence(self._error))
            else:
                self._say_once(lambda: self._with_going_on(self._roll_call.lost() or self._stopped()))

    def _stopped(self):
        if self._size == 1:
            return "stopped by SIGTERM"
        if unheard := self._roll_call.unheard():
            return unheard
        how = "stopped by SIGTERM: Ctrl-C at horovodrun, a scheduler, or by hand"
        return how if self._is_one_host else f"{how}; or a worker of another host has ended"


@functools.cache
def of_this_process():
    """-> the `LastWords` of this process; rank and size are those that `horovodrun` has set in the environment."""
    return LastWords(Notices.of_this_job(), Placement.of_this_process())


def _place(error):
    """-> ` (FILE:LINE)` of the last line of the traceback that is not in a library; "" if there is none."""
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_library(frame.filename)]
    return f" ({places[-1].filename}:{places[-1].lineno})" if places else ""


def _is_library(path):
    return path == __file__ or re.search(r"^<|site-packages|lib/python", path) is not None
