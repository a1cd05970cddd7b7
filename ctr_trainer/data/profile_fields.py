"""Profiles of the labels and fields of `libsvm` and `libffm` files, from their first lines."""

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.data import delimited, libsvm
from ctr_trainer.data.badrows import BadRows
from ctr_trainer.data.profile import NUMBER, Profile
from ctr_trainer.messages.errors import UserError


@dataclasses.dataclass
class SampledField:
    """One field of the sample; in the `libsvm` format all indices belong to one field.

    Attributes:
      column: name of the field as a column of a Chunk.
      most: largest number of indices of the field in one line.
      ones: whether the value of every index is 1.
    """

    column: str
    most: int = 0
    ones: bool = True


def sample(source, format, rows, bad_rows):
    """-> (Profile of the labels, list of SampledFields in order, number of lines).

    Args:
      source: paths as `delimited.files` takes them.
      format: `libsvm` or `libffm`.
      rows: number of lines of the sample, about.
      bad_rows: number of unreadable lines that may be left out.
    """
    labels, fields, count, bad = [], {}, 0, BadRows(bad_rows)
    pattern = libsvm.OF_FIELD if format == "libffm" else libsvm.WEIGHTED
    for file in delimited.files(source):
        for lines, _ in libsvm.good_lines(file, pattern, bad):
            tokens, owner = libsvm.tokens_of(lines)
            weighted = pc.match_substring_regex(tokens, rf"^{pattern}$").to_numpy(zero_copy_only=False)
            first = np.searchsorted(owner, np.arange(len(lines)))  # The first token of each line is its label.
            labels.append(tokens.take(pa.array(first)).cast(pa.float64()).to_numpy())
            _add(fields, tokens.filter(pa.array(weighted)), owner[weighted], format == "libffm")
            count += len(lines)
            if count >= rows:
                break
        if count >= rows:
            break
    if not count:
        raise UserError("the input has no rows to look at")
    values = np.concatenate(labels)
    label = Profile(libsvm.LABEL, NUMBER, len(values), len(values), len(np.unique(values)), values)
    return label, [fields[name] for name in sorted(fields)], count


def _add(fields, tokens, owner, has_fields):
    """Adds tokens to `fields`, a dict of field number -> SampledField."""
    names = np.zeros(len(tokens), np.int64)
    if has_fields:
        names = pc.list_element(pc.split_pattern(tokens, ":", max_splits=1), 0).cast(pa.int64()).to_numpy()
    values = pc.replace_substring_regex(tokens, "^.*:", "").cast(pa.float64()).to_numpy()
    for name in np.unique(names):
        of = names == name
        column = f"{libsvm.FIELD}{name}" if has_fields else libsvm.FEATURES
        field = fields.setdefault(int(name), SampledField(column))
        field.most = max(field.most, int(np.unique(owner[of], return_counts=True)[1].max()))
        field.ones &= bool((values[of] == 1).all())
