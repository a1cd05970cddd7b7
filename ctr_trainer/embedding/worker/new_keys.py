"""The share of each feature's keys that were never trained, next to the share in training."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import numpy as np

from ctr_trainer.embedding.store.worker_rows import WorkerRows
from ctr_trainer.embedding.worker.lookup import Lookup

_log = logging.getLogger(__name__)
_LEAST = 50  # Keys of a feature in a window, because a share of fewer keys says little.
_KEPT = 0.7  # A share is far above the usual one if less than this part of the known keys is left.
# The first lookups are counted, then one of several, so that counting takes less than 1% of the time.
_FIRST_OF_TRAINING, _EVERY_OF_TRAINING, _FIRST, _EVERY = 16, 16, 64, 4
_PART = 0.2  # Part of the share in training that the newest window makes up.
_SHOWN = 8  # Largest number of features in a line.


class NewKeys:
    """Counts the keys of each feature that were never trained, in windows of lookups.

        share = new keys / keys    over all values of all examples, without missing values

    A key is new if it has no row. In training, where a lookup creates the row, a key is new if its row still has its
    first initial weight. There, one rank counts lookups of the first pass over the data: the first 16, then one in
    16, and those for which far more rows are created than usual, as after a change of the values in a stream.
    An evaluation counts the first 64 lookups of each rank, then one in 4, and a server counts all.
    Any thread may call the methods. A feature is warned of once per process.

    Args:
      features: the features, the same on all ranks.
      warns: whether this process logs the shares and warns of high ones.
      samples: whether to count the lookups of a training.

    Attributes:
      shares: dict of feature -> share of new keys in its last window.
      in_training: the same in training, a moving average, which checkpoints and exports keep.
      limit: the number of lookups in the rest of the first pass.
      forms: f(feature) -> (form of its values here, form in training), see `data.observations.form`; "" if unknown.
    """

    _warned: ClassVar[set[str]] = set()

    def __init__(self, features: Iterable[str] = (), warns: bool = True, samples: bool = False) -> None:
        self._places = {name: place for place, name in enumerate(features)}
        self._counts, self._lock = np.zeros((len(self._places), 2), np.int64), threading.Lock()
        self._warns, self._samples, self._lookups = warns, samples, 0
        self._created: dict[tuple[str, ...], tuple[int, float]] = {}  # The last slot, and the usual number of new rows.
        self.shares: dict[str, float] = {}
        self.in_training: dict[str, float] = {}
        self.limit = float("inf")
        self.forms: Callable[[str], tuple[str, str]] = lambda name: ("", "")

    def begin_lookup(self, create: bool) -> bool:
        """Returns whether to count the next lookup; `create` as in training, which learns from the lookup before."""
        number, self._lookups = self._lookups, self._lookups + 1
        if not create:
            return number < _FIRST or number % _EVERY == 0
        if not self._samples or number >= self.limit or (number >= _FIRST_OF_TRAINING and number % _EVERY_OF_TRAINING):
            return False
        usual, shares = self.in_training, self._end_window()
        learned = {name: (1 - _PART) * usual.get(name, share) + _PART * share for name, share in shares.items()}
        self.in_training = usual | learned  # A new dict, because other threads may be reading the old one.
        return True

    def look(
        self, features: tuple[str, ...], rows: WorkerRows, lookup: Lookup, slots: np.ndarray, is_due: bool
    ) -> None:
        """Counts a lookup if it is due, or if a training has created far more rows for it than usual.

        Call this before the rows are trained. The lookup is of `features`, in its order, and `slots` are int64[U].
        """
        if self._samples:
            last, usual = self._created.get(features, (-1, float("inf")))
            # New rows are at the end, unless there are free slots.
            created = int(np.count_nonzero((slots > last) | (slots < 0)))
            self._created[features] = int(slots.max(initial=last)), created + _KEPT * (min(usual, created) - created)
            is_due = is_due or created > 2 * usual + _LEAST
        if not is_due:
            return
        is_new = slots < 0
        if self._samples:
            initial = rows.initial(lookup.unique)
            is_new |= (rows.take(slots) == initial).all(axis=1)  # A small step may leave some rounded weights.
        self.add(features, lookup.count(is_new))

    def add(self, features: Iterable[str], counts: np.ndarray) -> None:
        """Adds int64[F, 2], the numbers of new keys and of all keys; see `Lookup.count`."""
        with self._lock:
            self._counts[[self._places[name] for name in features]] += counts

    def report(self, all_sum: Callable[[np.ndarray, str], np.ndarray]) -> dict[str, Any]:
        """Ends the window of an evaluation or prediction, and logs its shares. A collective.

        Returns {`new_keys`: dict of feature -> {`share`, `in_training`}}, for JSON, or {} if there are no features.
        """
        if not self._places:
            return {}
        self._counts, self._lookups = all_sum(self._counts, "new_keys"), 0
        if self._end_window(least=1) and self._warns:
            _log.info("%s", self.line())
        usual = self.in_training
        return {"new_keys": {name: {"share": x, "in_training": usual.get(name)} for name, x in self.shares.items()}}

    def watch(self, in_training: dict[str, float]) -> None:
        """Ends a window of a server, and sets the shares in training of the model that it serves."""
        self.in_training = in_training
        self._end_window()

    def line(self) -> str:
        """Returns the shares of the last window as text, the highest first."""
        order = sorted(self.shares, key=lambda name: -self.shares[name])
        shown = ", ".join(f"{name} {self.shares[name]:.1%} ({self._usual(name)})" for name in order[:_SHOWN])
        return f"keys that were never trained (in training): {shown}{', ...' * (len(order) > _SHOWN)}"

    def metrics(self, prefix: str) -> Iterator[Any]:
        """Yields the gauges `new_key_share` and `new_key_share_in_training` of each feature, for Prometheus."""
        from prometheus_client.core import GaugeMetricFamily

        for name, shares in (("new_key_share", self.shares), ("new_key_share_in_training", self.in_training)):
            text = "Share of a feature's keys that were never trained"
            family = GaugeMetricFamily(f"{prefix}_{name}", text, labels=["feature"])
            for feature, share in shares.items():
                family.add_metric([feature], share)
            yield family

    def _end_window(self, least: int = _LEAST) -> dict[str, float]:
        """Ends the window of each feature that has `least` keys, and returns its share."""
        with self._lock:
            ended = {name: place for name, place in self._places.items() if self._counts[place, 1] >= least}
            counts = self._counts[[*ended.values()]].tolist()
            self._counts[[*ended.values()]] = 0
        shares = {name: new / keys for name, (new, keys) in zip(ended, counts, strict=True)}
        self.shares = self.shares | shares
        for (name, share), (_, keys) in zip(shares.items(), counts, strict=True):
            usual = self.in_training.get(name, 1.0 if self._samples else 0.0)  # A training begins with new keys only.
            if not self._warns or keys < _LEAST or 1 - share >= _KEPT * (1 - usual) or name in self._warned:
                continue
            self._warned.add(name)
            here, trained = self.forms(name)
            texts = f"; values look like {here!r}, in training like {trained!r}" if here and trained else ""
            _log.warning(
                "feature %s: %.0f%% of its keys are new%s. In training %s were new. Only equal texts have equal keys: "
                "see docs/features.md, 'Equal values'",
                *(name, 100 * share, texts, self._usual(name)),
            )
        return shares

    def _usual(self, name: str) -> str:
        return f"{self.in_training[name]:.1%}" if name in self.in_training else "unknown"
