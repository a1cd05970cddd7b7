"""Histories of MovieLens users, for the columns that the `movielens` format adds."""

import bisect
import collections


def _liked(movie, rating):
    return movie if float(rating) >= 4 else None


def _stars(movie, rating):
    return rating


# Column -> f(movie, rating) -> what an earlier rating adds to a history, None for nothing.
COLUMNS = {"liked": _liked, "stars": _stars}


class Histories:
    """The values of one column per user, by time.

    The history of an example holds the values of strictly earlier ratings: neither the example itself, nor other
    ratings of the same second, since the file does not say which of them came first.

    Args:
      ratings: iterable of (user, movie, rating, timestamp), strings, in any order. A rating or timestamp that is no
        number is left out here; the reading of its row reports it.
      column: one of `COLUMNS`.
      length: number of newest values to return; None for all.

    Caveat: all values are in memory, about 100 bytes per value.
    """

    def __init__(self, ratings, column, length=None):
        self._length = length
        events, value_of = collections.defaultdict(list), COLUMNS[column]
        for user, movie, rating, timestamp in ratings:
            if is_number(rating) and is_number(timestamp):
                value = value_of(movie, rating)
                if value is not None:
                    events[user].append((float(timestamp), value))
        self._times, self._values = {}, {}
        for user, of_user in events.items():
            of_user.sort(key=lambda event: event[0])  # The sort is stable: equal times keep the order of the file.
            self._times[user] = [time for time, _ in of_user]
            self._values[user] = [value for _, value in of_user]

    def before(self, user, timestamp):
        """-> the values of a user before a time, the oldest first."""
        end = bisect.bisect_left(self._times.get(user, ()), float(timestamp))
        start = max(0, end - self._length) if self._length else 0
        return self._values.get(user, [])[start:end]


def is_number(text):
    """-> whether a text is a number, and not NaN."""
    try:
        return float(text) == float(text)
    except ValueError:
        return False
