"""Observations about the source columns, collected during encoding and checked at the end of a conversion."""

import collections
import logging
import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.data.blocks import label_columns
from ctr_trainer.data.encoders import encode_label, text, value_of
from ctr_trainer.data.typed import bytes_of, is_list, is_text
from ctr_trainer.features.columns import FORM, TYPICAL, Label
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.messages.errors import UserError, cut

_log = logging.getLogger(__name__)
_FEW = 20  # With fewer lists, all may have one value by chance.
_SHOWN = 10  # Largest number of values in a message.
# The web page of `score` shows typical values to every visitor, so they must not be personal ids. An id can occur
# several times in a log, but hardly in 5 % of the rows, or in a hundred rows of a small file.
_LEAST_SHARE, _LEAST_ROWS = 0.05, 100
_FORM_VALUES, _FORM_LENGTH = 100, 30


class Positives:
    """Checks whether a label's `positive` occurs in the data, and collects other values that occur."""

    def __init__(self, label: Label, suffix: str) -> None:
        self._label, self._suffix = label, suffix
        self._others: dict[str, None] = {}
        self.found = label.positive is None

    def add(self, column: pa.ChunkedArray) -> None:
        if self.found:
            return
        values = column.combine_chunks()
        labels = encode_label(values, self._label, self._suffix).column.to_numpy(zero_copy_only=False)
        self.found = bool((labels == 1).any())
        if not self.found and len(self._others) <= _SHOWN:
            self._others |= dict.fromkeys(text(values)[0].drop_null().unique().to_pylist()[: _SHOWN + 1])

    def merge(self, other: "Positives") -> None:
        self.found = self.found or other.found
        if not self.found and len(self._others) <= _SHOWN:
            self._others |= other._others

    def check(self) -> None:
        """Raises UserError if several values occur, but not `positive`; logs a warning if only one value occurs."""
        if self.found or not self._others:
            return
        shown = ", ".join(cut(repr(value)) for value in [*self._others][:_SHOWN]) + (
            ", ..." if len(self._others) > _SHOWN else ""
        )
        message = (
            f"label column {self._label.column!r}: `positive = {self._label.positive!r}` never occurs, so no row is "
            f"positive; the column has the values {shown}. Set `positive` in [label] to the exact value of positive "
            "rows, including blanks and capitals"
        )
        if len(self._others) > 1:
            raise UserError(message)
        _log.warning("%s; ignore this if all rows are negative", message)


class Observations:
    """Lengths of lists, values that look like several values, occurrences of each label's `positive`, typical texts.

    Chunks are encoded concurrently, each with its own Observations, which are merged in the order of the chunks. By bag
    or sequence, `lengths` are the numbers of good rows by their number of values before truncation, and `odd` is
    (column, a value that looks like several). `texts` has the FORM of each feature's column, and its TYPICAL text if it
    can be shown.
    """

    def __init__(self, spec: FeatureSpec) -> None:
        self._spec = spec
        self.lengths: dict[str, collections.Counter[int]] = {
            f.name: collections.Counter() for f in spec.sparse if f.combiner
        }
        self.odd: dict[str, tuple[str, str]] = {}
        self.texts: dict[str, dict[str, str]] = {}
        self._positives = {n: Positives(label, spec.csv.label_suffix) for n, label in label_columns(spec).items()}

    def lists(self) -> dict[str, dict[str, float]]:
        """Returns for each bag and sequence its mean and largest length, and the shares of empty and truncated rows."""
        of_feature = {f.name: f for f in self._spec.sparse}
        found = {}
        for name, lengths in self.lengths.items():
            rows, most = max(lengths.total(), 1), of_feature[name].max_length
            found[name] = dict(
                mean=sum(length * count for length, count in lengths.items()) / rows,
                largest=max(lengths, default=0),
                empty=lengths[0] / rows,
                cut=sum(count for length, count in lengths.items() if most and length > most) / rows,
            )
        return found

    def see_labels(self, table: pa.Table) -> None:
        """Looks for each label's `positive` in the columns of a Chunk."""
        for name, label in label_columns(self._spec).items():
            self._positives[name].add(table[label.column])

    def see_typical(self, table: pa.Table) -> None:
        """Finds each feature's form, and its most frequent text if that is frequent enough to be shown."""
        least = max(_LEAST_ROWS, _LEAST_SHARE * len(table))
        for f in self._spec.sparse:
            if f.is_bucketised or f.derive or f.column in self._spec.looked_up:
                continue
            self.texts[f.name] = {FORM: form(_first_values(table[f.column]))}
            if f.combiner is None and f.column not in self._spec.ids:
                if text := _most_frequent(table[f.column], least):
                    self.texts[f.name][TYPICAL] = text

    def merge(self, other: "Observations") -> None:
        """Adds the observations of the next chunks. Logs a warning for the first odd value of each feature."""
        for name, lengths in other.lengths.items():
            self.lengths[name].update(lengths)
        for name, positives in other._positives.items():
            self._positives[name].merge(positives)
        self.texts = other.texts | self.texts
        for name, (column, odd) in other.odd.items():
            if name not in self.odd:
                self.odd[name] = column, odd
                _log.warning(
                    "list feature %r, column %r: the value %r becomes one key, including brackets and blanks. If it is "
                    "a list, or a value in brackets, set brackets = true for the feature, and separator to the text "
                    'between the values (separator = " " for blanks)',
                    *(name, column, odd[:200]),
                )

    def check(self) -> None:
        """Checks the labels after all rows are read. Logs a warning for lists that may have another separator."""
        for positives in self._positives.values():
            positives.check()
        for feature in (f for f in self._spec.sparse if f.combiner):
            lengths = self.lengths[feature.name]
            if lengths[1] >= _FEW and lengths[1] == lengths.total() - lengths[0]:
                _log.warning(
                    "list feature %r, column %r: each of its %d lists has one value, so %r may not be the separator of "
                    "the values: check the feature's 'separator', and set brackets = true for '[1, 2]'",
                    *(feature.name, feature.column, lengths[1], feature.separator),
                )


def _first_values(column: pa.ChunkedArray) -> list[object]:
    """Returns the first values of a column as bytes, because texts may not be UTF-8."""
    values = column.slice(0, _FORM_VALUES).combine_chunks()
    return bytes_of(pc.list_flatten(values) if is_list(values.type) else values).drop_null().to_pylist()


def form(values: Sequence[object]) -> str:
    """Returns how most of the first values are written: their digits other than 0 are 7, their letters a or A.

    The form of 42.0 is 77.0. Unlike a value, a form is no personal id. It is "" if there are no values.
    """

    def masked(found: re.Match) -> str:
        return "7" if found[0].isdecimal() else "A" if found[0].isupper() else "a"

    first = [each.decode(errors="replace") if isinstance(each, bytes) else str(each) for each in values[:_FORM_VALUES]]
    counted = collections.Counter(re.sub(r"(?!0)[^\W_]", masked, each[:_FORM_LENGTH]) for each in first if each)
    return max(counted, key=lambda each: counted[each], default="")


def _most_frequent(column: pa.ChunkedArray, least: float) -> str:
    """Returns the most frequent text or integer that occurs in at least `least` rows, or "" if there is none."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not is_text(kind) and not pa.types.is_integer(kind):
        return ""
    counted = pc.value_counts(column.drop_null())
    counts = counted.field("counts").to_numpy(zero_copy_only=False)
    frequent = np.flatnonzero(counts >= least)
    for at in frequent[np.argsort(-counts[frequent], kind="stable")].tolist():
        value = value_of(counted.field("values")[at])
        text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        # A web form removes surrounding blanks and replaces invalid bytes, so the text would get another key.
        if text and text == text.strip() and "\ufffd" not in text:
            return text
    return ""
