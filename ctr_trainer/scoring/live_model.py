"""The model that a server serves, from the wait for its publication on; a thread looks for newer records."""

import logging
import threading
import time

from ctr_trainer.messages.errors import UserError
from ctr_trainer.scoring.refusals import NotReady, NotThere
from ctr_trainer.scoring.served_model import ServedModel

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
      on_refresh: f(outcome), called after each look: `newer`, `none` or `failed`.
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
        age = self._model.freshness.age_secs
        if 0 < self._max_age_secs < age:
            return f"the rows are {age:.0f} s old, above the {self._max_age_secs:g} s of --max_age_secs"
        return ""

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
        said = ""
        while not self._ends.wait(self._refresh_secs):
            said = self._refresh(said)

    def _load(self):
        began, said = time.monotonic(), False
        while not self._ends.is_set():
            try:
                reader = self._open_reader()
            except UserError as error:
                if time.monotonic() - began >= self._start_timeout:
                    raise UserError(f"{error} (waited {self._start_timeout:g} s, --start_timeout)") from None
                if not said:
                    _log.warning("%s; waiting up to %g s for it", error, self._start_timeout)
                self._why, said = str(error), True
                self._ends.wait(min(self._refresh_secs, self._start_timeout))
                continue
            try:
                self._model = ServedModel(reader)
            except BaseException:
                reader.close()
                raise
            _log.info("%s", self._served())
            return

    def _refresh(self, said):
        """Looks for newer records until there is none. -> what was said of a failure last, "" after a success"""
        try:
            while not self._ends.is_set():
                is_newer = self._model.refresh()
                self._on_refresh("newer" if is_newer else "none")
                if not is_newer:
                    return ""
                _log.info("%s", self._served())
        except Exception as error:
            self._on_refresh("failed")
            text = str(error) or type(error).__name__
            if text != said:
                _log.warning("no newer record is served: %s", text, exc_info=not isinstance(error, UserError))
            return text
        return ""

    def _served(self):
        now = self._model.freshness
        return (
            f"model {self.name}: generation {now.generation}, epoch {now.epoch}, global step {now.global_step}, "
            f"{now.age_secs:.1f} s old"
        )
