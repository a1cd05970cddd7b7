"""Measures what a column says about the label: its held-out log loss as a category, as an amount, and as both.

The prediction for a row is computed from the other rows. With n other rows of the row's category, of which s are
positive,

    p = (s + w p0) / (n + w)

p0 is the mean label, and w is the one of 1, 5, 25 and 125 with the least log loss. The categories of an amount are
buckets of neighbouring numbers: 8, 32 or 128 buckets, but at most half as many as there are distinct numbers. For both,
the categories are the values and p0 is the prediction of the value's bucket.

A frequent id has a bucket almost of its own, so buckets alone do not show that numbers are amounts. Their order must
matter, too: the other values of a bucket, of 8 or 32, must predict the labels of a value better than the mean label.
"""

import dataclasses
import itertools
from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

_WEIGHTS = (1.0, 5.0, 25.0, 125.0)
_BUCKETS = (8, 32, 128)
_SURE = 2.0  # Least gain, in standard errors.
_FEWEST_ROWS = 2  # Least mean number of rows per value of a category whose order matters.
_SURE_OF_PAIR = 3.0  # The same for the best of many pairs.
_MOST_CROSSED = 32  # Most columns whose pairs are measured: 496 pairs.
_MOST_TRIED = 32  # Most pairs that are measured again next to the pairs that were found before.
_SHARE = 0.1  # Least share of the gain that the second of two forms adds.

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]
Labels = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class Measured:
    """The held-out log losses of a column, and the form that they suggest.

    Attributes:
      none, category, amount: mean log loss per row without the column, as a category and as an amount; None if not
        measured.
      gains: whether the better form has a lower log loss than `none`, by more than chance.
      is_category, is_amount: the suggested form. Both are True if each adds a tenth of the gain to the other. If the
        category does not, or has fewer than two rows per value, and neighbouring numbers are alike, it is an amount.
      note: the reason for the form, other than the log losses.
    """

    none: float
    category: float | None
    amount: float | None
    gains: bool
    is_category: bool
    is_amount: bool
    note: str = ""

    @property
    def gain(self) -> float:
        """The log loss without the column minus the one of the better form, at least 0."""
        return max(0.0, *(self.none - loss for loss in (self.category, self.amount) if loss is not None))

    def __str__(self) -> str:
        forms = (("a category", self.category), ("an amount", self.amount))
        figures = ", ".join(f"{loss:.4f} as {form}" for form, loss in forms if loss is not None)
        gain = "" if self.gains else "no gain: "
        return f"{gain}held-out log loss {figures}, {self.none:.4f} without{self.note and '; '}{self.note}"


class _Losses:
    """The log losses of the rows of each value.

    Args:
      rows: float64[2, k], the number of rows of each value whose label is 0 and 1.
      p: float64[2, k], the predictions for these rows.
    """

    def __init__(self, rows: Floats, p: Floats) -> None:
        self.p, self._share = p, rows / rows.sum()
        p = np.clip(p, 1e-9, 1 - 1e-9)
        self._each = -np.log(np.array([1 - p[0], p[1]]))
        self._count = rows.sum()
        self.mean = float((self._share * self._each).sum())

    def adds_to(self, before: "_Losses", least: float = 0.0) -> bool:
        """Whether these losses are lower than the losses `before` by more than chance, and by more than `least`."""
        gains, gain = before._each - self._each, before.mean - self.mean
        deviation = np.sqrt((self._share * (gains - gain) ** 2).sum() / self._count)
        return bool(gain > max(_SURE * deviation, least))


def measure(labels: Labels, codes: Codes, numbers: Floats | None, is_countable: bool) -> Measured:
    """Measures a column.

    Args:
      labels: bool[n].
      codes: int64[n], the number of each row's value; a missing value has the greatest number.
      numbers: float64[k], the values, for an amount; None for text.
      is_countable: whether the values can be categories.
    """
    rows = _rows(labels, codes)
    none = _Losses(rows, _prior(rows))
    category = _best(rows, none.p) if is_countable else None
    if numbers is None:
        assert category is not None
        return Measured(none.mean, category.mean, None, category.adds_to(none), True, False)
    order = np.argsort(numbers)
    sizes = [_buckets(rows.sum(0), order, min(size, len(order) // 2)) for size in _BUCKETS]
    amount = min((_of_buckets(rows, bucket) for bucket in sizes), key=lambda losses: losses.mean)
    if category is None:
        return Measured(none.mean, None, amount.mean, amount.adds_to(none), False, True)
    both = _best(rows, amount.p)
    least = _SHARE * max(none.mean - both.mean, 0)
    is_ordered = any(_neighbours_tell(rows, bucket) for bucket in sizes[:-1])
    # Fewer rows per value overfit: as a category, the weights of persons in Adult lower the test AUC by 0.005.
    is_frequent = rows.sum() >= _FEWEST_ROWS * len(numbers)
    is_category = not is_ordered or (is_frequent and both.adds_to(amount, least))
    is_amount = is_ordered and (not is_category or both.adds_to(category, least))
    gains = is_ordered or category.adds_to(none)
    note = "" if is_ordered else "neighbouring numbers are unlike"
    note = note if is_frequent or is_category else "too few rows per number for a category"
    return Measured(none.mean, category.mean, amount.mean, gains, is_category, is_amount, note)


def crosses(
    labels: Labels, columns: Mapping[str, Codes], categories: Collection[str], count: int
) -> list[tuple[tuple[str, str], float, float]]:
    """Finds the pairs of categories that say most about the label beyond all single columns and the pairs before them.

    The log-odds of a row are a sum over columns, and then over pairs. With n other rows of the row's category, of which
    s are positive and for which the sum so far predicts e positive ones, a category adds

        log((s + w p0) / (e + w p0)) - log((n - s + w (1 - p0)) / (n - e + w (1 - p0)))

    Args:
      columns: name -> int64[n], the number of each row's value.
      categories: the columns of the pairs.
      count: the most pairs.

    Returns:
      list of (pair, log loss without it, log loss with it), the best first. Each gain is more than chance.
    """
    if labels.all() or not labels.any():
        return []
    odds, order = np.full(len(labels), np.log(labels.mean() / (1 - labels.mean()))), []
    for name, codes in columns.items():
        order.append((_loss(labels, _added(labels, odds, codes)).mean(), name))
    for _, name in 2 * sorted(order):  # The second time, correlated columns correct each other.
        odds = _added(labels, odds, columns[name])
    best = [name for _, name in sorted(order) if name in categories][:_MOST_CROSSED]
    pairs, found = list(itertools.combinations(sorted(best, key=list(columns).index), 2)), []
    for _ in range(count):
        before, tried = _loss(labels, odds), []
        for pair in pairs:
            gains = before - _loss(labels, _added(labels, odds, _pair(*(columns[name] for name in pair))))
            if gains.mean() > _SURE_OF_PAIR * gains.std() / np.sqrt(len(labels)):
                tried.append((gains.mean(), pair))
        if not tried:
            break
        (gain, first), *others = sorted(tried, reverse=True)
        found.append((first, float(before.mean()), float(before.mean() - gain)))
        odds = _added(labels, odds, _pair(*(columns[name] for name in first)))
        pairs = [pair for _, pair in others[:_MOST_TRIED]]
    return found


def _pair(first: Codes, second: Codes) -> Codes:
    return np.unique(first * (second.max() + 1) + second, return_inverse=True)[1]


def _added(labels: Labels, odds: Floats, codes: Codes) -> Floats:
    """Returns the log-odds with what the categories add, for the best w; see `crosses`."""
    p, base = 1 / (1 + np.exp(-odds)), labels.mean()
    n, s, e = (np.bincount(codes, each)[codes] - each for each in (np.ones(len(labels)), labels.astype(float), p))
    tried = []
    for weight in _WEIGHTS:
        of_positive = (s + weight * base) / (e + weight * base)
        of_negative = (n - s + weight * (1 - base)) / (n - e + weight * (1 - base))
        tried.append(odds + np.log(np.maximum(of_positive, 1e-9) / np.maximum(of_negative, 1e-9)))
    return min(tried, key=lambda each: _loss(labels, each).mean())


def _loss(labels: Labels, odds: Floats) -> Floats:
    return np.logaddexp(0, np.where(labels, -odds, odds))


def scores(labels: Labels, codes: Codes) -> Floats:
    """Returns the predictions p of the rows by their categories, float64[n]; the same for all values of one row."""
    rows = _rows(labels, codes)
    return _best(rows, np.full_like(rows, labels.mean())).p[labels.astype(int), codes]


def buckets(numbers: Floats, size: int) -> Codes:
    """Returns a bucket for each number, int64[n], at most `size` different ones; NaN has the greatest one."""
    found, codes = np.unique(numbers, return_inverse=True)
    missing = int(len(found) > 0 and np.isnan(found[-1]))
    return _buckets(np.bincount(codes), np.arange(len(found) - missing), size)[codes]


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Returns the exact area under the ROC curve of 0/1 labels. A pair with equal scores counts half."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    positive = labels > 0
    n = positive.sum()
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * (len(labels) - n)))


def _rows(labels: Labels, codes: Codes) -> Floats:
    size = codes.max() + 1
    return np.array([np.bincount(codes[labels == label], minlength=size) for label in (False, True)], np.float64)


def _prior(rows: Floats) -> Floats:
    """Returns the mean label of the other rows."""
    positive = rows[1].sum() + np.array([[0.5], [-0.5]])
    return np.repeat(positive / rows.sum(), rows.shape[1], axis=1)


def _best(rows: Floats, prior: Floats) -> _Losses:
    """Returns the losses with the best w; `prior` is p0."""
    others, positive = np.maximum(rows.sum(0) - 1, 0), rows[1] - np.array([[0], [1]])
    tried = (_Losses(rows, (positive + weight * prior) / (others + weight)) for weight in _WEIGHTS)
    return min(tried, key=lambda losses: losses.mean)


def _of_buckets(rows: Floats, bucket: Codes) -> _Losses:
    of_buckets = np.array([np.bincount(bucket, of_label) for of_label in rows])
    return _Losses(rows, _best(of_buckets, _prior(of_buckets)).p[:, bucket])


def _neighbours_tell(rows: Floats, bucket: Codes) -> bool:
    """Whether the labels of a value are better predicted by the other values of its bucket than by the mean label."""
    others = np.array([np.bincount(bucket, of_label)[bucket] for of_label in rows]) - rows
    base, weight = rows[1].sum() / rows.sum(), _WEIGHTS[-1]
    p = (others[1] + weight * base) / (others.sum(0) + weight)
    gains = (rows * np.log(np.array([(1 - p) / (1 - base), p / base]))).sum(0)
    return bool(gains.sum() > _SURE * np.sqrt((gains**2).sum()))


def _buckets(counts: np.ndarray, order: Codes, size: int) -> Codes:
    """Returns the bucket of each value; `order` are the values in order, without the last one if it means missing.

    A value takes a part of the buckets that is proportional to the square root of its count: with its count, zeros
    would take all buckets of amounts that are mostly zero, and with 1, frequent small counts would share a bucket.
    """
    parts = np.sqrt(counts[order])
    bucket = np.full(len(counts), size)
    bucket[order] = (np.cumsum(parts) - parts / 2) / max(parts.sum(), 1) * size
    return bucket
