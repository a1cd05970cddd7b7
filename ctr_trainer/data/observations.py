"""What an encoder sees in the columns in addition to what it makes of them; a conversion judges it in the end."""

import logging

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.data.columns import label_columns
from ctr_trainer.data.labels import Positives
from ctr_trainer.data.lists import Lengths
from ctr_trainer.features.columns import TYPICAL

_log = logging.getLogger(__name__)
# A typical value is shown to whoever opens the page of `score`, so it must not be one person's own id. An id can occur
# several times in a log, but hardly in one row of twenty, nor in a hundred rows of a small file.
_LEAST_SHARE, _LEAST_ROWS = 0.05, 100


class Observations:
    """The lengths of lists, values that look like several, whether each label's `positive` occurs, typical texts.

    Chunks that are encoded apart have Observations of their own, which are merged in the chunks' order.

    Args:
      spec: FeatureSpec.

    Attributes:
      lengths: dict of bag or sequence -> Lengths of the good rows' lists.
      odd: dict of bag or sequence -> (column, a value that looks like several values).
      typical: dict of single-valued feature -> the most frequent text of its column.
    """

    def __init__(self, spec):
        self._spec = spec
        self.lengths = {f.name: Lengths(f.max_length) for f in spec.sparse if f.combiner}
        self.odd = {}
        self.typical: dict[str, str] = {}
        self._positives = {n: Positives(label, spec.csv.label_suffix) for n, label in label_columns(spec).items()}

    def see_labels(self, table):
        """Looks for each label's `positive` in the columns of a Chunk."""
        for name, label in label_columns(self._spec).items():
            self._positives[name].add(table[label.column])

    def see_typical(self, table: pa.Table) -> None:
        """Finds the most frequent text of each single-valued feature's column, if it is frequent enough to be shown."""
        least = max(_LEAST_ROWS, _LEAST_SHARE * len(table))
        for f in self._spec.sparse:
            if f.combiner is None and not f.is_bucketised and not f.derive and f.column not in self._spec.ids:
                text = _most_frequent(table[f.column], least)
                if text:
                    self.typical[f.name] = text

    def with_typical(self, statistics: dict[str, dict]) -> dict[str, dict]:
        """Returns the statistics of a data set together with the typical texts, as `DatasetInfo.statistics`."""
        return statistics | {name: {TYPICAL: text} for name, text in self.typical.items()}

    def merge(self, other):
        """Adds what was seen in the chunks that follow; warns of the first odd value of each feature."""
        for name, lengths in other.lengths.items():
            self.lengths[name].merge(lengths)
        for name, positives in other._positives.items():
            self._positives[name].merge(positives)
        self.typical = other.typical | self.typical
        for name, (column, odd) in other.odd.items():
            if name not in self.odd:
                self.odd[name] = column, odd
                _warn_of_odd(name, column, odd)

    def check(self):
        """Judges labels and lists once all rows were seen; warns of lists that may have another separator.

        Raises:
          UserError: a label's `positive` never occurred, and several other values did.
        """
        for positives in self._positives.values():
            positives.check()
        for feature in (f for f in self._spec.sparse if f.combiner and self.lengths[f.name].all_single):
            _log.warning(
                "list feature %r, column %r: each of its %d lists has one value, so %r may not be the values' "
                "separator: check the feature's 'separator', and brackets = true for '[1, 2]'",
                *(feature.name, feature.column, self.lengths[feature.name].single, feature.separator),
            )


def _most_frequent(column: pa.ChunkedArray, least: float) -> str:
    """Returns the most frequent text or integer of at least that many rows, or "" if there is none."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    if not any(is_kind(kind) for is_kind in (*texts, pa.types.is_integer)):
        return ""
    counted = pc.value_counts(column.drop_null())
    counts = counted.field("counts").to_numpy(zero_copy_only=False)
    frequent = np.flatnonzero(counts >= least)
    for at in frequent[np.argsort(-counts[frequent], kind="stable")].tolist():
        value = counted.field("values")[at].as_py()
        text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        # A form removes blanks around a text, and replaces bytes that are no text: both would have another key.
        if text and text == text.strip() and "\ufffd" not in text:
            return text
    return ""


def _warn_of_odd(name, column, odd):
    _log.warning(
        "list feature %r, column %r: the value %r becomes one key, brackets and blanks included. If it is "
        "several values, or one in brackets, give the feature brackets = true, and as separator what stands "
        'between the values (separator = " " for blanks)',
        *(name, column, odd[:200]),
    )
