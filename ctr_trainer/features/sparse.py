"""Sparse features: values that are hashed to keys, whose embeddings are learned."""

import dataclasses
import math

import numpy as np

from ctr_trainer.features.times import DERIVED
from ctr_trainer.messages.errors import UserError

COMBINERS = ("sum", "mean", "sqrtn")
SEQUENCE = "none"  # the combiner of a feature whose values are not combined
ZERO, OWN = "zero", "own"
FIRST, LAST = "first", "last"


@dataclasses.dataclass(frozen=True)
class SparseFeature:
    """A categorical feature, of one of four kinds.

    | kind | given by | a row has |
    |---|---|---|
    | single | nothing else | one value |
    | single | `derive` = hour or weekday | one time, taken as its hour or weekday |
    | bucketised | `buckets` or `quantiles` | one number, taken as the number of its bucket |
    | bag | `combiner` = sum, mean or sqrtn | any number of values, pooled to one vector |
    | sequence | `combiner` = none | up to `max_length` values, in order |

    A bag of the embeddings e_i with the weights w_i (1 without `weight_separator`) is

        sum: sum_i w_i e_i    mean: sum_i w_i e_i / sum_i w_i    sqrtn: sum_i w_i e_i / sqrt(sum_i w_i^2)

    and zeros where that divides by zero, as in TensorFlow's `embedding_lookup_sparse`.

    Attributes:
      name: unique in the spec.
      column: of the source data.
      dim: width of its embedding.
      slot: what is hashed along with a value; features of one slot share their rows, and so have one dim.
      combiner: see above; None for a single value.
      separator: between the values of a bag or sequence in one source field; None for "|", or "," with `brackets`.
      brackets: whether a field's values stand in brackets, as `[1, 2]` or `['a', 'b']`: they, and the blanks and quotes
        around each value, are taken off.
      max_length: how many values of a bag or sequence are kept at most; 0 for all of a bag's.
      keep: which: `first` or `last`; None for the first of a bag and the last, the newest, of a sequence.
      weight_separator: between a bag's value and its weight in `news:0.5`, the last one counts; None: no weights.
      buckets: boundaries, ascending; a number falls into the bucket whose number is that of the boundaries <= it.
      quantiles: into how many equally full buckets the training data are cut, whose boundaries conversion fits.
      missing: `zero`: an absent value reads zeros and learns nothing; `own`: it has a learned row of its own, that of
        the value "". None for `own` where the feature is single and `zero` for the other kinds.
      derive: what the value is of a time in the column, `hour` (0 to 23) or `weekday` (0, Monday, to 6), of UTC; see
        `times`. None for the column's own value.

    Raises:
      UserError: a value that is out of range, or two that exclude each other.
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
            raise UserError(f"'brackets' are a list's; give a combiner: {', '.join((*COMBINERS, SEQUENCE))}")
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
        """Whether the last `max_length` values are kept and not the first."""
        return self.keep == LAST if self.keep else self.is_sequence

    @property
    def missing_has_row(self):
        """Whether an absent value has a row; else it has the key 0."""
        return self.missing == OWN if self.missing else self.combiner is None and not self.is_bucketised

    def _check_weights(self):
        if self.weight_separator is None:
            return
        if not self.is_bag:
            raise UserError(f"'weight_separator' is a bag's; give a combiner: {', '.join(COMBINERS)}")
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
            single = np.array(self.buckets, np.float32)  # as numbers are kept and compared
            if not len(single) or not all(map(math.isfinite, single)) or (np.diff(single) <= 0).any():
                raise UserError(f"buckets {list(self.buckets)} are not ascending boundaries, as [0.5, 1, 10]")
