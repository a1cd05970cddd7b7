"""What a MovieLens user did before: histories by time, for columns that the `movielens` format adds."""

import bisect
import collections


def _liked(movie, rating):
    return movie if float(rating) >= 4 else None


def _stars(movie, rating):
    return rating


# By column: f(movie, rating) -> what an earlier rating adds to a history, None for nothing.
COLUMNS = {"liked": _liked, "stars": _stars}


class Histories:
    """A column's values of each user, by time.

    An example's history holds what came strictly before it: neither itself nor another rating of the same second, whose
    order the file does not tell.

    Args:
      ratings: iterable of (user, movie, rating, timestamp), strings, in any order; what is no number is left out here
        and named where its row is read.
      column: of `COLUMNS`.
      length: the newest so many are given; None for all.

    Caveat: holds all values in memory, some 100 bytes each.
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
            of_user.sort(key=lambda event: event[0])  # stable: equal times stay in the order of the file
            self._times[user] = [time for time, _ in of_user]
            self._values[user] = [value for _, value in of_user]

    def before(self, user, timestamp):
        """-> the user's values before a time, the oldest first."""
        end = bisect.bisect_left(self._times.get(user, ()), float(timestamp))
        start = max(0, end - self._length) if self._length else 0
        return self._values.get(user, [])[start:end]


def is_number(text):
    """Whether a text is a number, and not NaN."""
    try:
        return float(text) == float(text)
    except ValueError:
        return False
