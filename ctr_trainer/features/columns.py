"""The parts of a feature spec: labels, features, table limits, and the form of delimited text."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ctr_trainer.features.times import DERIVED
from ctr_trainer.system.messages.errors import UserError

Statistics = Mapping[str, Mapping[str, Any]]  # Feature name -> statistics that conversion computed.
PIECEWISE = "piecewise_linear"
FITTED = ("standardize", "minmax", PIECEWISE)  # Transforms that need the training data's statistics.
TRANSFORMS = ("none", "log1p", *FITTED)
COMBINERS = ("sum", "mean", "sqrtn")
SEQUENCE = "none"  # The combiner of a feature whose values are not combined.
ZERO, OWN = "zero", "own"
FIRST, LAST = "first", "last"
# The keys of a feature's most frequent text and the form of its texts in its statistics, and of its share of new keys.
TYPICAL, FORM, NEW_KEYS = "typical", "form", "new_keys"
BOUNDARIES = "boundaries"  # The key of a number's quantile boundaries in its statistics.
_EVICTIONS = ("lru", "lfu")
_MOST_FREQUENCY = 255
_BREAKS, _ASCII = "\r\n", bytes(range(128))


@dataclasses.dataclass(frozen=True)
class Label:
    """A 0/1 target: `value == positive`, `number >= threshold`, or, without either, a column of 0 and 1.

    Attributes:
      column: column of the source data.
      positive: value of the column that makes an example positive; excludes `threshold`.
      threshold: least number that makes an example positive; excludes `positive`.
      name: name of the label, unique among the labels; by default the column's name.
      weight: weight of this label's loss in the sum of the losses of several labels.

    Raises:
      UserError: both `positive` and `threshold` are given, or the weight is negative.
    """

    column: str
    positive: str | None = None
    threshold: float | None = None
    name: str = ""
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.positive is not None and self.threshold is not None:
            raise UserError("label: give 'positive' or 'threshold', not both")
        if not 0 <= self.weight < float("inf"):
            raise UserError(f"label: weight {self.weight:g} is not a finite number of at least 0")
        if not self.name:
            object.__setattr__(self, "name", self.column)


@dataclasses.dataclass(frozen=True)
class DenseFeature:
    """A numeric feature.

    Attributes:
      name: name of the feature, unique in the spec.
      column: column of the source data.
      transform: `none`, `log1p` (sign(x) * log1p(|x|)), `standardize` or `minmax` (by the training data's statistics),
        or `piecewise_linear`, which makes several columns; see `tensors.dense_transform`.
      default: number that replaces a missing value before the transform.
      clip: (lowest, highest), or None. Numbers are clipped to this interval before the transform and before the
        transform's statistics are computed.
      pieces: largest number of columns of `piecewise_linear`, each with the same share of the training data, as with
        `SparseFeature.quantiles`; 0 for any other transform.

    Raises:
      UserError: the transform is unknown, `clip` is not an interval, or `pieces` is invalid for the transform.
    """

    name: str
    column: str
    transform: str = "none"
    default: float = 0.0
    clip: tuple[float, float] | None = None
    pieces: int = 0

    def __post_init__(self) -> None:
        if self.transform not in TRANSFORMS:
            raise UserError(f"transform {self.transform!r} is not one of {', '.join(TRANSFORMS)}")
        if self.clip is not None and not (len(self.clip) == 2 and self.clip[0] < self.clip[1]):
            raise UserError(f"clip {list(self.clip)} is not an interval [lowest, highest], such as [0, 100]")
        if self.transform == PIECEWISE and self.pieces < 2:
            raise UserError(f"pieces {self.pieces} is not at least 2, the fewest for transform {PIECEWISE!r}")
        if self.transform != PIECEWISE and self.pieces:
            raise UserError(f"pieces {self.pieces}: only transform {PIECEWISE!r} has pieces, not {self.transform!r}")


@dataclasses.dataclass(frozen=True)
class SparseFeature:
    """A categorical feature of one of four kinds.

    | kind | given by | an example has |
    |---|---|---|
    | single | the default | one value |
    | single | `derive` | one time or number, from which `derive` computes the value |
    | bucketised | `buckets` or `quantiles` | one number; the number of its bucket is the value |
    | bag | `combiner` = sum, mean or sqrtn | any number of values, pooled to one vector |
    | sequence | `combiner` = none | up to `max_length` values, in order |

    The vector of a bag with the embeddings e_i and the weights w_i (1 without `weight_separator`) is

        sum: sum_i w_i e_i    mean: sum_i w_i e_i / sum_i w_i    sqrtn: sum_i w_i e_i / sqrt(sum_i w_i^2)

    and zeros if the divisor is zero, as in TensorFlow's `embedding_lookup_sparse`.

    Attributes:
      name: name of the feature, unique in the spec.
      column: column of the source data.
      dim: width of the embedding.
      slot: text that is hashed together with a value. Features with the same slot share rows and have the same dim.
      combiner: see above; None for a single value.
      separator: text between the values of a bag or sequence in a source field; None for "|", or "," with `brackets`.
      brackets: whether the values of a field are enclosed in brackets, as in `[1, 2]` or `['a', 'b']`. The brackets,
        and blanks and quotes around each value, are removed.
      max_length: largest number of values of a bag or sequence that are kept; 0 keeps all values of a bag.
      keep: which values to keep if there are more than `max_length`, `first` or `last`. None keeps the first values of
        a bag and the last (newest) values of a sequence.
      weight_separator: text between a bag's value and its weight, such as ":" in `news:0.5`; only its last occurrence
        separates. None if values have no weights.
      buckets: boundaries, ascending. A number's bucket is the number of boundaries <= the number.
      quantiles: number of buckets, each with the same share of the training data. Conversion fits their boundaries.
      missing: `zero`: a missing value has a vector of zeros, which is not trained. `own`: a missing value has a trained
        row, the row of the value "". None is `own` for a single feature and `zero` for the other kinds.
      derive: function that computes the value: `hour`, `weekday` or `weekend` of a time, or `log_squared` of a number;
        see `derived`. None for the value of the column.

    Raises:
      UserError: a value is out of range, or two settings are mutually exclusive.
    """

    name: str
    column: str
    dim: int
    slot: str
    combiner: str | None = None
    separator: str | None = None
    brackets: bool = False
    max_length: int = 0
    keep: str | None = None
    weight_separator: str | None = None
    buckets: tuple[float, ...] | None = None
    quantiles: int = 0
    missing: str | None = None
    derive: str | None = None

    def __post_init__(self) -> None:
        if self.dim < 1:
            raise UserError(f"dim {self.dim} is not at least 1")
        if self.combiner not in (None, *COMBINERS, SEQUENCE):
            accepted = f"{', '.join(COMBINERS)}, or {SEQUENCE} for a sequence; leave it out for a single-valued feature"
            raise UserError(f"combiner {self.combiner!r} is not one of {accepted}")
        if self.max_length < 0:
            raise UserError(f"max_length {self.max_length} is negative; 0 keeps all values")
        if self.is_sequence and not self.max_length:
            raise UserError("a sequence (combiner 'none') needs a 'max_length' of at least 1, the length of its tensor")
        if self.separator is None:
            object.__setattr__(self, "separator", "," if self.brackets else "|")
        if not self.separator:
            raise UserError("'separator' is empty")
        if self.brackets and self.combiner is None:
            raise UserError(f"'brackets' is for lists; give a combiner: {', '.join((*COMBINERS, SEQUENCE))}")
        for key, choices in (("keep", (FIRST, LAST)), ("missing", (ZERO, OWN)), ("derive", DERIVED)):
            if getattr(self, key) not in (None, *choices):
                raise UserError(f"{key} {getattr(self, key)!r} is not one of {', '.join(choices)}")
        self._check_weights()
        self._check_buckets()
        if self.derive and (self.combiner is not None or self.is_bucketised):
            raise UserError("'derive' excludes 'combiner', 'buckets' and 'quantiles'")

    @property
    def is_sequence(self) -> bool:
        return self.combiner == SEQUENCE

    @property
    def is_bag(self) -> bool:
        return self.combiner in COMBINERS

    @property
    def is_bucketised(self) -> bool:
        return self.buckets is not None or self.quantiles > 0

    @property
    def keeps_last(self) -> bool:
        """Whether the last `max_length` values are kept instead of the first."""
        return self.keep == LAST if self.keep else self.is_sequence

    @property
    def missing_has_row(self) -> bool:
        """Whether a missing value has a row. Otherwise its key is 0."""
        return self.missing == OWN if self.missing else self.combiner is None and not self.is_bucketised

    def _check_weights(self) -> None:
        if self.weight_separator is None:
            return
        if not self.is_bag:
            raise UserError(f"'weight_separator' is for bags; give a combiner: {', '.join(COMBINERS)}")
        if not self.weight_separator or self.weight_separator == self.separator:
            raise UserError(f"weight_separator {self.weight_separator!r} is empty or the same as 'separator'")

    def _check_buckets(self) -> None:
        if not self.is_bucketised and not self.quantiles:
            return
        if self.combiner is not None or (self.buckets is not None and self.quantiles):
            raise UserError("'buckets', 'quantiles' and 'combiner' exclude each other")
        if self.buckets is None and self.quantiles < 2:
            raise UserError(f"quantiles {self.quantiles} is not at least 2")
        if self.buckets is not None:
            single = np.array(self.buckets, np.float32)  # The data are stored and compared as float32.
            if not len(single) or not all(map(math.isfinite, single)) or (np.diff(single) <= 0).any():
                raise UserError(f"buckets {list(self.buckets)} are not ascending boundaries, such as [0.5, 1, 10]")


@dataclasses.dataclass(frozen=True)
class CrossFeature(SparseFeature):
    """A single-valued feature whose key is a function of the keys of other features; see `hashing.cross_keys`.

    Attributes:
      columns: names of two or more single-valued features, or of columns that only one of them reads.
      max_rows: largest number of different keys; 0 for any number. Values whose keys are equal share a row.
    """

    columns: tuple[str, ...] = ()
    max_rows: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.columns) < 2 or len({*self.columns}) < len(self.columns):
            raise UserError(f"columns {list(self.columns)} are not at least two different columns")
        if self.max_rows < 0:
            raise UserError(f"max_rows {self.max_rows} is negative; 0 is for any number of rows")


@dataclasses.dataclass(frozen=True)
class TableLimits:
    """The limits on the rows of one table; see `embedding.table.table_config.TableConfig` for each limit.

    Attributes:
      table: name of the table, such as `dim16` for the features with dim 16.

    Raises:
      UserError: a number is out of range, or the eviction policy is unknown.
    """

    table: str
    min_frequency: int = 0
    max_rows: int = 0
    eviction: str = "lru"
    ttl_steps: int = 0

    def __post_init__(self) -> None:
        for key in ("min_frequency", "max_rows", "ttl_steps"):
            if getattr(self, key) < 0:
                raise UserError(f"{key} {getattr(self, key)} is negative; 0 sets no limit")
        if self.min_frequency > _MOST_FREQUENCY:
            raise UserError(f"min_frequency {self.min_frequency} is above {_MOST_FREQUENCY}")
        if self.eviction not in _EVICTIONS:
            raise UserError(f"eviction {self.eviction!r} is not one of {', '.join(_EVICTIONS)}")


@dataclasses.dataclass(frozen=True)
class CsvFormat:
    """The form of files in the `csv` format.

    A field that begins with the quote character ends after the next single quote character; in the field, a doubled
    quote character represents one. In any other field, quote characters are text.

    Attributes:
      delimiter: text between two fields, one ASCII character.
      header: whether a file's first line names its columns.
      columns: names of the columns, in order. Required without a header. They replace the names in a header.
      null_values: texts that represent a missing value, in the other formats as well.
      strip: whether to remove white space around every field.
      label_suffix: ending to remove from the label's text, such as the `.` in Adult's test file.
      quote: the quote character, one ASCII character; "" if quotes have no special meaning.
      lines_per_row: largest number of lines of one row. Above 1, a quoted field may contain line breaks. If a quote is
        not closed within this number of lines, its first line is a bad row, and reading continues at the next line.
      encoding: the text encoding of the files, such as `latin-1`. It must contain ASCII.

    Raises:
      UserError: a value is not as described, or `lines_per_row` is above 1 without a quote character.
    """

    delimiter: str = ","
    header: bool = True
    columns: tuple[str, ...] = ()
    null_values: tuple[str, ...] = ("",)
    strip: bool = False
    label_suffix: str = ""
    quote: str = '"'
    lines_per_row: int = 1
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        try:
            contains_ascii = _ASCII.decode(self.encoding).encode() == _ASCII
        except (LookupError, UnicodeError):
            contains_ascii = False
        if not contains_ascii:
            raise UserError(f"encoding {self.encoding!r} is not the name of one that contains ASCII, such as latin-1")
        for name, value, lengths in (("delimiter", self.delimiter, (1,)), ("quote", self.quote, (0, 1))):
            if len(value.encode()) not in lengths or value in tuple(_BREAKS):
                raise UserError(f"{name} {value!r} is not one character of ASCII")
        if self.delimiter == self.quote:
            raise UserError(f"delimiter and quote are both {self.quote!r}")
        if self.lines_per_row < 1 or (self.lines_per_row > 1 and not self.quote):
            raise UserError(f"lines_per_row {self.lines_per_row}: expected at least 1, and 1 without a quote character")
        if not self.header and not self.columns:
            raise UserError("without a header, 'columns' must name the columns in order")
        for name in self.columns:
            if self.columns.count(name) > 1:
                raise UserError(f"'columns' contains {name!r} {self.columns.count(name)} times")
