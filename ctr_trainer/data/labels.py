"""Source columns to labels."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.data.encoded import Encoded
from ctr_trainer.data.scalars import any_bad, numbers, text


def encode_label(values, label, suffix):
    """-> Encoded of float32, 0 or 1; a row without a label is bad.

    Args:
      values: the source's column.
      label: Label.
      suffix: an ending of its texts that is not part of them.
    """
    values, bad = text(values)
    if suffix:
        values = pc.if_else(pc.ends_with(values, suffix), pc.utf8_slice_codeunits(values, 0, -len(suffix)), values)
    if label.positive is not None:
        positive = pc.equal(values, label.positive).fill_null(False)
        missing = values.is_null().to_numpy(zero_copy_only=False)
        return Encoded(positive.cast(pa.float32()), any_bad(bad, missing), "a label (UTF-8 text)")
    column, bad = numbers(values, pa.float64())
    column = column.to_numpy(zero_copy_only=False)
    if label.threshold is not None:
        labels, wrong = column >= label.threshold, np.isnan(column)
        expected = f"a number, to compare with {label.threshold:g}"
    else:
        labels, wrong = column == 1, ~np.isin(column, (0, 1))
        expected = "a label of 0 or 1"
    return Encoded(pa.array(labels.astype(np.float32)), any_bad(bad, wrong), expected)


def encode_label_or_nan(values, label, suffix):
    """As `encode_label`, but the label of a row without one is NaN, and no row is bad."""
    encoded = encode_label(values, label, suffix)
    labels = encoded.column.to_numpy(zero_copy_only=False)
    return Encoded(pa.array(labels if encoded.bad is None else np.where(encoded.bad, np.float32("nan"), labels)))
