"""What the first lines of files of the `libsvm` and `libffm` formats show of their labels and fields."""

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
    """One field of the sample; of the `libsvm` format all indices are one.

    Attributes:
      column: its name as a column of a Chunk.
      most: indices of the field in one line, at most.
      ones: whether the value of each is 1.
    """

    column: str
    most: int = 0
    ones: bool = True


def sample(source, format, rows, bad_rows):
    """-> (Profile of the labels, list of Fields in order, lines read).

    Args:
      source: as `delimited.files` takes it.
      format: `libsvm` or `libffm`.
      rows: of the sample, about.
      bad_rows: how many lines that cannot be read may be left out.
    """
    labels, fields, count, bad = [], {}, 0, BadRows(bad_rows)
    pattern = libsvm.OF_FIELD if format == "libffm" else libsvm.WEIGHTED
    for file in delimited.files(source):
        for lines, _ in libsvm.good_lines(file, pattern, bad):
            tokens, owner = libsvm.tokens_of(lines)
            weighted = pc.match_substring_regex(tokens, rf"^{pattern}$").to_numpy(zero_copy_only=False)
            first = np.searchsorted(owner, np.arange(len(lines)))  # a line's label
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
    """Adds tokens; `fields` is by number."""
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
