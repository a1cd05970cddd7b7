"""What an encoder sees in the columns beside what it makes of them; a conversion judges it in the end."""

import logging

from ctr_trainer.data.columns import label_columns
from ctr_trainer.data.labels import Positives
from ctr_trainer.data.lists import Lengths

_log = logging.getLogger(__name__)


class Observations:
    """The lengths of lists, values that look like several, and whether each label's `positive` occurs.

    Chunks that are encoded apart have Observations of their own, which are merged in the chunks' order.

    Args:
      spec: FeatureSpec.

    Attributes:
      lengths: dict of bag or sequence -> Lengths of the good rows' lists.
      odd: dict of bag or sequence -> (column, a value that looks like several values).
    """

    def __init__(self, spec):
        self._spec = spec
        self.lengths = {f.name: Lengths(f.max_length) for f in spec.sparse if f.combiner}
        self.odd = {}
        self._positives = {n: Positives(label, spec.csv.label_suffix) for n, label in label_columns(spec).items()}

    def see_labels(self, table):
        """Looks for each label's `positive` in the columns of a Chunk."""
        for name, label in label_columns(self._spec).items():
            self._positives[name].add(table[label.column])

    def merge(self, other):
        """Adds what was seen in the chunks that follow; warns of the first odd value of each feature."""
        for name, lengths in other.lengths.items():
            self.lengths[name].merge(lengths)
        for name, positives in other._positives.items():
            self._positives[name].merge(positives)
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


def _warn_of_odd(name, column, odd):
    _log.warning(
        "list feature %r, column %r: the value %r becomes one key, brackets and blanks included. If it is "
        "several values, or one in brackets, give the feature brackets = true, and as separator what stands "
        'between the values (separator = " " for blanks)',
        *(name, column, odd[:200]),
    )
