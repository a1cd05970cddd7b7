"""Sparse features: categorical values, hashed to keys; the embedding of each key is learned."""

import dataclasses
import math

import numpy as np

from ctr_trainer.features.times import DERIVED
from ctr_trainer.messages.errors import UserError

COMBINERS = ("sum", "mean", "sqrtn")
SEQUENCE = "none"  # the combiner of a feature whose values are not combined
ZERO, OWN = "zero", "own"
FIRST, LAST = "first", "last"
TYPICAL = "typical"  # the name of a feature's most frequent text among its statistics


@dataclasses.dataclass(frozen=True)
class SparseFeature:
    """A categorical feature, of one of four kinds.

    | kind | given by | an example has |
    |---|---|---|
    | single | nothing else | one value |
    | single | `derive` = hour or weekday | one time; its hour or weekday is the value |
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
      slot: text that is hashed along with a value. Features of one slot share their rows, so they have one dim.
      combiner: see above; None for a single value.
      separator: text between the values of a bag or sequence in a source field; None for "|", or for "," if `brackets`.
      brackets: whether the values of a field stand in brackets, as in `[1, 2]` or `['a', 'b']`. The brackets, and
        blanks and quotes around each value, are removed.
      max_length: largest number of values of a bag or sequence that are kept; 0 keeps all values of a bag.
      keep: values to keep if there are more, `first` or `last`. None keeps the first of a bag, and the last (newest) of
        a sequence.
      weight_separator: text between a bag's value and its weight, ":" in `news:0.5`; if a value has several, the last
        one counts. None: values have no weights.
      buckets: boundaries, ascending. A number's bucket is the number of boundaries <= the number.
      quantiles: number of buckets, each with the same share of the training data. Conversion fits their boundaries.
      missing: `zero`: an absent value reads zeros and learns nothing. `own`: an absent value has a learned row, that of
        the value "". None is `own` for a single feature and `zero` for the other kinds.
      derive: part of a time in the column that is the value: `hour` (0 to 23) or `weekday` (0, Monday, to 6), in UTC;
        see `times`. None for the column's own value.

    Raises:
      UserError: a value is out of range, or two values exclude each other.
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

    def __post_init__(self):
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
        for key, accepted in (("keep", (FIRST, LAST)), ("missing", (ZERO, OWN)), ("derive", DERIVED)):
            if getattr(self, key) not in (None, *accepted):
                raise UserError(f"{key} {getattr(self, key)!r} is not one of {', '.join(accepted)}")
        self._check_weights()
        self._check_buckets()
        if self.derive and (self.combiner is not None or self.is_bucketised):
            raise UserError("'derive' excludes 'combiner', 'buckets' and 'quantiles'")

    @property
    def is_sequence(self):
        return self.combiner == SEQUENCE

    @property
    def is_bag(self):
        return self.combiner in COMBINERS

    @property
    def is_bucketised(self):
        return self.buckets is not None or self.quantiles > 0

    @property
    def keeps_last(self):
        """Whether the last `max_length` values are kept, and not the first ones."""
        return self.keep == LAST if self.keep else self.is_sequence

    @property
    def missing_has_row(self):
        """Whether an absent value has a row; if not, its key is 0."""
        return self.missing == OWN if self.missing else self.combiner is None and not self.is_bucketised

    def _check_weights(self):
        if self.weight_separator is None:
            return
        if not self.is_bag:
            raise UserError(f"'weight_separator' is for bags; give a combiner: {', '.join(COMBINERS)}")
        if not self.weight_separator or self.weight_separator == self.separator:
            raise UserError(f"weight_separator {self.weight_separator!r} is empty or the separator between the values")

    def _check_buckets(self):
        if not self.is_bucketised and not self.quantiles:
            return
        if self.combiner is not None or (self.buckets is not None and self.quantiles):
            raise UserError("'buckets', 'quantiles' and 'combiner' exclude each other")
        if self.buckets is None and self.quantiles < 2:
            raise UserError(f"quantiles {self.quantiles} is not at least 2")
        if self.buckets is not None:
            single = np.array(self.buckets, np.float32)  # float32, as the data are stored and compared.
            if not len(single) or not all(map(math.isfinite, single)) or (np.diff(single) <= 0).any():
                raise UserError(f"buckets {list(self.buckets)} are not ascending boundaries, as [0.5, 1, 10]")
