"""The model of a scoring server. A thread waits for its publication, then for newer records."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable

from ctr_trainer.live.publication.places import RowReader
from ctr_trainer.live.scoring.metrics import ScoreMetrics
from ctr_trainer.live.scoring.refusals import RequestRefused
from ctr_trainer.live.scoring.served_model import RecordRefused, ServedModel
from ctr_trainer.settings.command_flags import ScoreFlags
from ctr_trainer.system.messages.errors import UserError

_log = logging.getLogger(__name__)
_CLOSE_SECONDS = 30
_AWAIT_SECONDS = 0.25  # `close` waits for this time.


class LiveModel:
    """Loads a model in a thread, then keeps it at the newest record.

    Args:
      open_reader: opens the publication; raises UserError as long as there is none.
      on_load: called when the model is loaded, before it serves.
      on_failure: called if there is no model after `start_timeout`.

    Attributes:
      loaded: the model, or None.
      failure: the error for which `on_failure` was called, or None.
    """

    def __init__(
        self,
        flags: ScoreFlags,
        open_reader: Callable[[], RowReader],
        metrics: ScoreMetrics,
        on_load: Callable[[], object],
        on_failure: Callable[[], None],
    ) -> None:
        self._flags, self._open_reader = flags, open_reader
        self._metrics, self._on_load, self._on_failure = metrics, on_load, on_failure
        self.failure: UserError | None = None
        self.loaded: ServedModel | None = None
        self._problem: Exception | None = None  # The error of the last look for the model or for a newer record.
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="refresh", daemon=True)

    def start(self) -> None:
        """Starts to load the model."""
        self._thread.start()

    @property
    def model(self) -> ServedModel:
        """The model. Raises RequestRefused if it is not loaded."""
        if self.loaded is None:
            raise RequestRefused(f"{self.what_is_wrong()}: send the request again later", status=503)
        return self.loaded

    @property
    def name(self) -> str:
        """The name of the model in URLs; "" until it is known."""
        return self._flags.name or (self.loaded.reader.record.model if self.loaded else "")

    def named(self, name: str) -> ServedModel:
        """Returns the model. Raises RequestRefused if it has another name or is not loaded."""
        model = self.model
        if name != self.name:
            raise RequestRefused(f"no model {name!r}; this server has {self.name!r}", status=404)
        return model

    def what_is_wrong(self) -> str:
        """Returns the reason why a load balancer should send no requests; "" if nothing is wrong."""
        if self.loaded is None:
            return self.problem or "the model is being loaded"
        if self.loaded.reader.unreadable:
            return self.loaded.reader.unreadable
        age, most = self.loaded.freshness.age_secs, self._flags.max_age_secs
        return f"the rows are {age:.0f} s old, above the {most:g} s of max_age_secs" if 0 < most < age else ""

    @property
    def problem(self) -> str:
        """The reason why no record, or no newer one, is served; "" if nothing is wrong. A served record stays valid."""
        return "" if self._problem is None else str(self._problem) or type(self._problem).__name__

    def close(self) -> None:
        """Ends the thread and frees the model. No other call may be running."""
        self._ends.set()
        if self._thread.ident is None:
            return
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            _log.warning("the search for a newer record did not end within %d s and is aborted", _CLOSE_SECONDS)
        elif self.loaded is not None:
            self.loaded.close()

    def _run(self) -> None:
        try:
            self._load()
        except Exception as error:
            failure = error if isinstance(error, UserError) else UserError(f"the model cannot be loaded: {error}")
            self._problem = self.failure = failure
            if failure is not error:
                _log.exception("the model cannot be loaded")
            self._on_failure()
            return
        looked = time.monotonic()
        while not self._ends.is_set():
            left = looked + self._flags.refresh_secs - time.monotonic()
            try:
                is_due = left <= 0 or self.model.reader.await_newer(min(left, _AWAIT_SECONDS), self._ends)
            except Exception:  # `_refresh` reports it.
                is_due = not self._ends.wait(left)
            if is_due:
                self._refresh(self.model)
                looked = time.monotonic()

    def _load(self) -> None:
        """Loads the model, unless `close` is called first."""
        began, longest = time.monotonic(), self._flags.start_timeout
        while not self._ends.is_set():
            try:
                model = self._opened()
                self.loaded, self._problem = model, None
                self._log_record(model)
                return
            except (UserError, OSError) as error:
                if time.monotonic() - began >= longest:
                    raise UserError(f"{error} (waited {longest:g} s, start_timeout)") from None
                if self._problem is None:
                    _log.warning("%s; waiting up to %g s for it", error, longest)
                self._problem = error
                self._ends.wait(min(self._flags.refresh_secs, longest))

    def _opened(self) -> ServedModel:
        reader = self._open_reader()
        try:
            model = ServedModel(reader)
            with contextlib.suppress(UserError):  # `_refresh` reports it.
                # Otherwise, the first requests would wait for the records that came meanwhile. The first of these needs
                # a session of its own, which takes a second on a busy machine; then a second one may be newer.
                if model.refresh():
                    model.refresh()
            self._on_load()
            return model
        except BaseException:
            reader.close()
            raise

    def _refresh(self, model: ServedModel) -> None:
        """Looks for newer records until there is none, and logs each new problem once."""
        before = self._problem
        try:
            while not self._ends.is_set():
                is_newer = model.refresh()
                self._metrics.note_refresh("newer" if is_newer else "none")
                if not is_newer:
                    break
                self._problem = None
                self._log_record(model)
        except Exception as error:
            self._metrics.note_refresh("refused" if isinstance(error, RecordRefused) else "failed")
            self._problem = error
            if type(error) is not type(before):  # Otherwise the log has it already.
                is_known = isinstance(error, UserError)
                _log.error("no newer record is served: %s", self.problem, exc_info=not is_known)
            return
        if not isinstance(self._problem, RecordRefused):  # The refused record is still the newest one.
            self._problem = None

    def _log_record(self, model: ServedModel) -> None:
        now = model.freshness
        _log.info(
            f"model {self.name}: generation {now.generation}, epoch {now.epoch}, global step {now.global_step}, "
            f"{now.age_secs:.1f} s old"
        )
