"""The model that a server serves, from the wait for its publication on; a thread looks for newer records."""

import logging
import threading
import time

from ctr_trainer.messages.errors import UserError
from ctr_trainer.publication.reading import RowsLost
from ctr_trainer.scoring.raw_inputs import NotReady, NotThere
from ctr_trainer.scoring.served_model import RecordRefused, ServedModel

_log = logging.getLogger(__name__)
_CLOSE_SECONDS = 30


class LiveModel:
    """Loads a model in a thread from `start` on, then keeps it at the newest record.

    Args:
      open_reader: f() -> `RowReader`; raises UserError as long as there is no publication.
      name: of the model in URLs; "" for the name that it was published by.
      refresh_secs: time between two looks for a newer record.
      start_timeout: how many seconds a publication is waited for.
      max_age_secs: age of the rows beyond which they count as stale; 0 for any age.
      on_refresh: f(outcome), called after each look: `newer`, `none`, `refused` or `failed`.
      on_failure: f(UserError), called if there is no model after `start_timeout`.
    """

    def __init__(
        self,
        open_reader,
        name="",
        refresh_secs=1.0,
        start_timeout=60.0,
        max_age_secs=0.0,
        on_refresh=lambda outcome: None,
        on_failure=lambda error: None,
    ):
        self._open_reader, self._name = open_reader, name
        self._refresh_secs, self._start_timeout, self._max_age_secs = refresh_secs, start_timeout, max_age_secs
        self._on_refresh, self._on_failure = on_refresh, on_failure
        self._model, self._why = None, "the model is being loaded"
        self._problem: Exception | None = None  # Of the last look for a newer record.
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="refresh", daemon=True)

    def start(self):
        """Begins to load the model."""
        self._thread.start()

    @property
    def model(self):
        """-> the `ServedModel`.

        Raises:
          NotReady: it is not loaded.
        """
        if self._model is None:
            raise NotReady(f"{self._why}: send the request again later")
        return self._model

    @property
    def name(self):
        """Of the model in URLs; "" as long as it is not known."""
        return self._name or (self._model.name if self._model else "")

    @property
    def is_loaded(self):
        """Whether there is a model."""
        return self._model is not None

    def named(self, name):
        """-> the `ServedModel` of a name.

        Raises:
          NotThere: there is no model of this name.
          NotReady: it is not loaded.
        """
        model = self.model
        if name != self.name:
            raise NotThere(f"no model {name!r}; this server has {self.name!r}")
        return model

    def score(self, examples):
        """-> `Scored` of `Examples`; see `ServedModel.score`."""
        return self.model.score(examples)

    def what_is_wrong(self):
        """-> why no load balancer should send requests; "" if nothing is wrong."""
        if self._model is None:
            return self._why
        if self._model.lost:
            return self._model.lost
        age = self._model.freshness.age_secs
        if 0 < self._max_age_secs < age:
            return f"the rows are {age:.0f} s old, above the {self._max_age_secs:g} s of --max_age_secs"
        return ""

    @property
    def problem(self) -> str:
        """Why no newer record is served; "" if nothing is wrong. What is served stays right."""
        return "" if self._problem is None else str(self._problem) or type(self._problem).__name__

    def close(self):
        """Ends the thread and frees the model; no call may be under way."""
        self._ends.set()
        if self._thread.ident is None:
            return
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            _log.warning("a look for a newer record did not end within %d s: it is cut off", _CLOSE_SECONDS)
        elif self._model is not None:
            self._model.close()

    def _run(self):
        try:
            self._load()
        except UserError as error:
            self._why = str(error)
            self._on_failure(error)
            return
        except BaseException as error:
            self._why = f"the model cannot be loaded: {error}"
            _log.exception("the model cannot be loaded")
            self._on_failure(UserError(self._why))
            return
        while not self._ends.wait(self._refresh_secs):
            self._refresh()

    def _load(self):
        began, said = time.monotonic(), False
        while not self._ends.is_set():
            try:
                self._model = self._opened()
            except UserError as error:
                if time.monotonic() - began >= self._start_timeout:
                    raise UserError(f"{error} (waited {self._start_timeout:g} s, --start_timeout)") from None
                if not said:
                    _log.warning("%s; waiting up to %g s for it", error, self._start_timeout)
                self._why, said = str(error), True
                self._ends.wait(min(self._refresh_secs, self._start_timeout))
                continue
            _log.info("%s", self._served())
            return

    def _opened(self) -> ServedModel:
        reader = self._open_reader()
        try:
            return ServedModel(reader)
        except BaseException:
            reader.close()
            raise

    def _refresh(self) -> None:
        """Looks for newer records until there is none, and says what is wrong when it changes."""
        before = self._problem
        try:
            while not self._ends.is_set():
                is_newer = self._model.refresh()
                self._on_refresh("newer" if is_newer else "none")
                if not is_newer:
                    break
                self._problem = None
                _log.info("%s", self._served())
        except RecordRefused as error:
            self._on_refresh("refused")
            self._problem = error
            _log.error("%s", error)
            return
        except Exception as error:
            self._on_refresh("failed")
            self._problem = error
            if isinstance(error, RowsLost):
                if not isinstance(before, RowsLost):
                    _log.error("%s", error)
            elif repr(error) != repr(before):
                _log.warning("no newer record is served: %s", self.problem, exc_info=not isinstance(error, UserError))
            return
        if not isinstance(self._problem, RecordRefused):  # The newest record is that one still.
            self._problem = None
        if isinstance(before, RowsLost) and self._problem is None:
            _log.info("the rows are there again")

    def _served(self):
        now = self._model.freshness
        return (
            f"model {self.name}: generation {now.generation}, epoch {now.epoch}, global step {now.global_step}, "
            f"{now.age_secs:.1f} s old"
        )
