"""Measures what a column says about the label: its held-out log loss as a category, as an amount, and as both.

The odds p / (1 - p) of a row are a product over columns, and then over pairs of columns. With n other rows of the row's
category, of which s are positive and for which the product so far predicts e positive ones, the factor of a category is

    ((s + w p0) / (e + w p0)) / ((n - s + w (1 - p0)) / (n - e + w (1 - p0)))

p0 is the mean label, and w is the one of 1, 5, 25 and 125 with the least log loss. Without other columns, the
prediction is (s + w p0) / (n + w). The categories of an amount are buckets of neighbouring numbers: 8, 32 or 128
buckets, but at most half as many as there are distinct numbers.

A frequent id has a bucket almost of its own, so buckets alone do not show that numbers are amounts. Their order must
matter, too: the other values of a bucket, of 8 or 32, must predict the labels of a value better than the mean label.
"""

import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_WEIGHTS = (1.0, 5.0, 25.0, 125.0)
_BUCKETS = (8, 32, 128)
_SURE, _SURE_OF_PAIR = 2.0, 3.0  # Least gain, in standard errors: of a column, and of the best of many pairs.
_FEWEST_ROWS = 2  # Least mean number of rows per value of a category whose order matters.
_MOST_CROSSED = 32  # Most columns whose pairs are measured: 496 pairs.
_MOST_TRIED = 32  # Most pairs that are measured again next to the pairs that were found before.
_SHARE = 0.1  # Least share of the gain that the second of two forms adds.

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]
Labels = npt.NDArray[np.bool_]


class Measured(NamedTuple):
    """The form of a column that its held-out log losses suggest, and why.

    `gain` is the mean log loss per row without the column minus the one of its better form; 0 if it may be chance. It
    is a category and an amount if each adds a tenth of the gain to the other. If the category does not, or has fewer
    than two rows per value, and neighbouring numbers are alike, it is an amount. With so few rows and no gain, too.
    """

    gain: float
    is_category: bool
    is_amount: bool
    why: str


def measure(labels: Labels, codes: Codes, numbers: Floats | None, is_countable: bool) -> Measured:
    """Measures a column.

    `codes`, int64[n], are the numbers of the rows' values; a missing value has the greatest one. `numbers`, float64[k],
    are the values of an amount; None for text. `is_countable` is whether the values can be categories.
    """
    start = _start(labels)
    none, note, is_ordered = _loss(labels, start), "", False
    forms = {"a category": _loss(labels, added(labels, start, codes))} if is_countable else {}
    is_category, is_amount = is_countable, numbers is not None
    if numbers is not None:
        counts, order = np.bincount(codes), np.argsort(numbers)
        bucketed = [_buckets(counts, order, min(size, len(order) // 2))[codes] for size in _BUCKETS]
        odds = _best(labels, (added(labels, start, bucket) for bucket in bucketed))
        forms["an amount"] = _loss(labels, odds)
    if is_countable and numbers is not None:
        both = _loss(labels, added(labels, odds, codes))
        least = _SHARE * max(none.mean() - both.mean(), 0)
        is_ordered = any(_neighbours_tell(labels, codes, bucket) for bucket in bucketed[:-1])
        # Fewer rows per value overfit: as a category, the weights of persons in Adult lower the test AUC by 0.005.
        is_frequent = len(labels) >= _FEWEST_ROWS * len(numbers)
        # As a category, rare numbers without a gain would make a table of mostly numbers one of rare keys.
        is_category = is_frequent or _adds(none, forms["a category"])
        if is_ordered:
            is_category = is_frequent and _adds(forms["an amount"], both, least)
        is_amount = not is_category or (is_ordered and _adds(forms["a category"], both, least))
        note = "" if is_ordered else "; neighbouring numbers are unlike"
        note = note if is_frequent or is_category else "; too few rows per number for a category"
    gain = none.mean() - min(loss.mean() for loss in forms.values())
    # Buckets of numbers whose order does not matter have a gain by chance.
    gain = max(gain, 0.0) if is_ordered or _adds(none, next(iter(forms.values()))) else 0.0
    figures = ", ".join(f"{loss.mean():.4f} as {form}" for form, loss in forms.items())
    why = f"{'' if gain else 'no gain: '}held-out log loss {figures}, {none.mean():.4f} without{note}"
    return Measured(gain, is_category, is_amount, why)


def crosses(
    labels: Labels, columns: Mapping[str, Codes], categories: Collection[str], count: int
) -> list[tuple[tuple[str, str], float, float]]:
    """Finds the pairs of categories that say most about the label beyond all single columns and the pairs before them.

    `columns` are the numbers of the rows' values by name, of which `categories` are paired. Returns at most `count` of
    (pair, log loss without it, log loss with it), the best first. Each gain is more than chance.
    """
    if labels.all() or not labels.any():
        return []
    odds = _start(labels)
    order = sorted((_loss(labels, added(labels, odds, codes)).mean(), name) for name, codes in columns.items())
    for _, name in 2 * order:  # The second time, correlated columns correct each other.
        odds = added(labels, odds, columns[name])
    best = [name for _, name in order if name in categories][:_MOST_CROSSED]
    pairs, found = [*itertools.combinations([name for name in columns if name in best], 2)], []
    for _ in range(count):
        before, tried = _loss(labels, odds), []
        for pair in pairs:
            after = _loss(labels, added(labels, odds, _pair(*(columns[name] for name in pair))))
            if _adds(before, after, sure=_SURE_OF_PAIR):
                tried.append((after.mean(), pair))
        if not tried:
            break
        (after_best, first), *others = sorted(tried)
        found.append((first, float(before.mean()), float(after_best)))
        odds = added(labels, odds, _pair(*(columns[name] for name in first)))
        pairs = [pair for _, pair in others[:_MOST_TRIED]]
    return found


def _pair(first: Codes, second: Codes) -> Codes:
    return np.unique(first * (second.max() + 1) + second, return_inverse=True)[1]


def added(labels: Labels, odds: Floats | None, codes: Codes) -> Floats:
    """Returns the odds with the factors of the categories, float64[n]; `odds` is None for those of the mean label."""
    odds = _start(labels) if odds is None else odds
    p, base = odds / (1 + odds), _base(labels)
    n, s, e = (np.bincount(codes, each)[codes] - each for each in (np.ones(len(labels)), labels.astype(float), p))

    def with_weight(weight: float) -> Floats:
        of_positive = (s + weight * base) / (e + weight * base)
        of_negative = (n - s + weight * (1 - base)) / (n - e + weight * (1 - base))
        return np.clip(odds * of_positive / of_negative, 1e-9, 1e9)

    return _best(labels, map(with_weight, _WEIGHTS))


def _best(labels: Labels, tried: Iterable[Floats]) -> Floats:
    """Returns the odds with the least log loss."""
    return min(tried, key=lambda odds: _loss(labels, odds).mean())


def _base(labels: Labels) -> float:
    return float(np.clip(labels.mean(), 1e-9, 1 - 1e-9))


def _start(labels: Labels) -> Floats:
    """Returns the odds of the mean label for each row."""
    return np.full(len(labels), _base(labels) / (1 - _base(labels)))


def _loss(labels: Labels, odds: Floats) -> Floats:
    return np.log1p(np.where(labels, 1 / odds, odds))


def _adds(before: Floats, after: Floats, least: float = 0.0, sure: float = _SURE) -> bool:
    """Whether the losses `after` are lower than `before` by more than chance, and by more than `least`."""
    gains = before - after
    return bool(gains.mean() > max(sure * gains.std() / np.sqrt(len(gains)), least))


def buckets(numbers: Floats, size: int) -> Codes:
    """Returns a bucket for each number, int64[n], at most `size` different ones; NaN has the greatest one."""
    found, codes = np.unique(numbers, return_inverse=True)
    missing = int(len(found) > 0 and np.isnan(found[-1]))
    return _buckets(np.bincount(codes), np.arange(len(found) - missing), size)[codes]


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Returns the exact area under the ROC curve of 0/1 labels. A pair with equal scores counts half."""
    codes = np.unique(scores, return_inverse=True)[1]
    positive = np.bincount(codes, labels > 0)
    negative = np.bincount(codes) - positive
    return float(positive @ (np.cumsum(negative) - negative / 2) / (positive.sum() * negative.sum()))


def _neighbours_tell(labels: Labels, codes: Codes, bucket: Codes) -> bool:
    """Whether the labels of a value are better predicted by the other values of its bucket than by the mean label."""
    each_row, base, weight = np.ones(len(labels)), _base(labels), _WEIGHTS[-1]
    n, s = (np.bincount(bucket, each)[bucket] - np.bincount(codes, each)[codes] for each in (each_row, labels))
    p = (s + weight * base) / (n + weight)
    gains = np.bincount(codes, np.log(np.where(labels, p / base, (1 - p) / (1 - base))))
    return bool(gains.sum() > _SURE * np.sqrt((gains**2).sum()))


def _buckets(counts: np.ndarray, order: Codes, size: int) -> Codes:
    """Returns the bucket of each value; `order` are the values in order, without the last one if it means missing."""
    # In proportion to the counts, zeros would take all buckets of amounts that are mostly zero; with equal parts,
    # frequent small counts would share a bucket.
    parts = np.sqrt(counts[order])
    bucket = np.full(len(counts), size)
    bucket[order] = (np.cumsum(parts) - parts / 2) / max(parts.sum(), 1) * size
    return bucket
