"""Makes labels of source columns."""

import logging

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.data.chunk import Encoded
from ctr_trainer.data.scalars import any_bad, numbers, text
from ctr_trainer.messages.errors import UserError

_log = logging.getLogger(__name__)
_SHOWN = 10  # Largest number of values in a message.
_CURE = (
    "; where its column has other values, name in [label] the `positive` one, or the `threshold` of positive numbers"
)


def encode_label(values, label, suffix):
    """-> Encoded of float32, 0 or 1. A row without a label is bad.

    Args:
      values: column of the source.
      label: Label.
      suffix: ending of the column's texts that is not part of the label.
    """
    values, bad = text(values)
    if suffix:
        values = pc.if_else(pc.ends_with(values, suffix), pc.utf8_slice_codeunits(values, 0, -len(suffix)), values)
    if label.positive is not None:
        positive = pc.equal(values, label.positive).fill_null(False)
        missing = values.is_null().to_numpy(zero_copy_only=False)
        return Encoded(positive.cast(pa.float32()), any_bad(bad, missing), "a label (UTF-8 text)")
    (column, bad), cure = numbers(values, pa.float64()), ""
    column = column.to_numpy(zero_copy_only=False)
    if label.threshold is not None:
        labels, wrong = column >= label.threshold, np.isnan(column)
        expected = f"a number, to compare with {label.threshold:g}"
    else:
        labels, wrong = column == 1, ~np.isin(column, (0, 1))
        expected, cure = "a label of 0 or 1", _CURE
    return Encoded(pa.array(labels.astype(np.float32)), any_bad(bad, wrong), expected, cure=cure)


def encode_label_or_nan(values, label, suffix):
    """Encodes as `encode_label`, but the label of a row without a label is NaN, and no row is bad."""
    encoded = encode_label(values, label, suffix)
    labels = encoded.column.to_numpy(zero_copy_only=False)
    return Encoded(pa.array(labels if encoded.bad is None else np.where(encoded.bad, np.float32("nan"), labels)))


class Positives:
    """Finds out whether a label's `positive` occurs in the data, and which other values occur.

    Args:
      label: Label.
      suffix: ending of the column's texts that is not part of the label.
    """

    def __init__(self, label, suffix):
        self._label, self._suffix, self._others = label, suffix, {}
        self.found = label.positive is None

    def add(self, values):
        """Looks at values of the source's column."""
        if self.found:
            return
        labels = encode_label(values, self._label, self._suffix).column.to_numpy(zero_copy_only=False)
        self.found = bool((labels == 1).any())
        if not self.found and len(self._others) <= _SHOWN:
            self._others |= dict.fromkeys(text(values)[0].drop_null().unique().to_pylist()[: _SHOWN + 1])

    def merge(self, other):
        """Adds the values that another Positives of the same label looked at."""
        self.found = self.found or other.found
        if not self.found and len(self._others) <= _SHOWN:
            self._others |= other._others

    def check(self):
        """Judges the values once all rows are read. Warns if `positive` never occurs and only one other value does.

        Raises:
          UserError: `positive` never occurs and several other values do; names some of them.
        """
        if self.found or not self._others:
            return
        shown = ", ".join(map(repr, [*self._others][:_SHOWN])) + (", ..." if len(self._others) > _SHOWN else "")
        message = (
            f"label column {self._label.column!r}: `positive = {self._label.positive!r}` never occurs, so no row is "
            f"positive; what occurs is {shown}. Name in [label] the value that makes a row positive, with its blanks "
            "and capitals"
        )
        if len(self._others) > 1:
            raise UserError(message)
        _log.warning("%s; if all rows are negative, that is right", message)
