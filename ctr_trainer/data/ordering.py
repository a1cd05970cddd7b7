"""Judges whether whole numbers are amounts or names. The order of amounts shows in how often each amount occurs."""

import numpy as np
import numpy.typing as npt

_LAGS = 5
_STRONG = 0.18  # Least mean correlation of a number's figures with those of the next numbers.
_SMOOTH = 0.6  # The same of rough counts that lie far from 0.
_FAR = 100
_ROUGH = 10.0
_SURE = 4.0  # Least distance, in standard deviations, from the correlation of numbers without order.
_ENUMERATED = 200  # More different numbers than this, with hardly a number left out, are ids.
_FULL = 0.8
_COUNTS = 4  # From this number of different numbers on it means something that each is rarer than the one before.


def is_ordered(values):
    """-> whether whole numbers look like amounts (ages, prices, counts) and not like ids.

    Neighbouring amounts occur about equally often, and are about equally far from the next amount. Neighbouring ids are
    not. The measure is the autocorrelation of the ranks of these two figures over the distinct numbers in order, at
    lags 1 to 5. Without an order its mean has a standard deviation of 1 / sqrt(5 n).

    Caveat: ids that were numbered by how often they occur look like counts, unless there are more than 200 of them and
    hardly a number is left out.

    Args:
      values: float64[n], whole numbers.

    Source: Kendall and Stuart, The Advanced Theory of Statistics, volume 3, on serial correlation.
    """
    distinct, counts = np.unique(values, return_counts=True)
    span = distinct[-1] - distinct[0] + 1
    if len(distinct) > _ENUMERATED and len(distinct) > _FULL * span:
        return False
    if _falls(distinct, counts) or _is_serial(np.diff(distinct)):
        return True
    # Ids that were given out in groups, as to the banners of a campaign, are about as frequent as their neighbours.
    # Amounts that lie far from 0 have smooth frequencies, which differ from each other by little more than chance.
    is_id = distinct[distinct > 0][0] >= _FAR and _roughness(counts) > _ROUGH if (distinct > 0).any() else False
    return _is_serial(counts, _SMOOTH if is_id else _STRONG)


def _falls(distinct, counts):
    """-> whether the numbers begin at about 0 and each is rarer than the one before, as small counts are."""
    first = int(np.argmax(counts))
    falling = len(counts) >= _COUNTS and (np.diff(counts[first:]) < 0).mean() > 0.9
    return bool(first <= 1 and -1 <= distinct[0] <= 1 and falling)


def _roughness(counts: npt.NDArray[np.int64]) -> float:
    """Returns the mean squared difference of neighbouring counts over that of Poisson counts with equal means."""
    return float(np.square(np.diff(counts)).sum() / max((counts[1:] + counts[:-1]).sum(), 1))


def _is_serial(figures: npt.NDArray[np.number], strong: float = _STRONG) -> bool:
    found = ranks(figures)
    found -= found.mean()
    lags, squares = min(_LAGS, len(found) // 4), np.square(found).sum()
    if not lags or not squares:
        return False
    mean = np.mean([(found[lag:] * found[:-lag]).sum() for lag in range(1, lags + 1)]) / squares
    return bool(mean > strong and mean * np.sqrt(lags * len(found)) > _SURE)


def ranks(figures: npt.NDArray[np.number]) -> npt.NDArray[np.float64]:
    """Returns the ranks of figures, counted from 1; equal figures have the mean of their ranks."""
    _, inverse, counts = np.unique(figures, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]
