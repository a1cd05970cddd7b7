"""What a MovieLens user liked before: histories with time, by which the `movielens` format fills its column `liked`."""

import bisect
import collections

LIKED = 4


class Histories:
    """The movies that each user rated `LIKED` or better, by time.

    An example's history holds what came strictly before it: neither itself nor another rating of the same second, whose
    order the file does not tell.

    Args:
      ratings: iterable of (user, movie, rating, timestamp), strings, in any order; what is no number is left out here
        and named where its row is read.
      length: the newest so many are given; None for all.

    Caveat: holds all liked ratings in memory, some 100 bytes each.
    """

    def __init__(self, ratings, length=None):
        self._length = length
        liked = collections.defaultdict(list)
        for user, movie, rating, timestamp in ratings:
            if is_number(rating) and is_number(timestamp) and float(rating) >= LIKED:
                liked[user].append((float(timestamp), movie))
        self._times, self._movies = {}, {}
        for user, events in liked.items():
            events.sort(key=lambda event: event[0])  # stable: equal times stay in the order of the file
            self._times[user] = [time for time, _ in events]
            self._movies[user] = [movie for _, movie in events]

    def before(self, user, timestamp):
        """-> the movies that the user liked before a time, the oldest first."""
        end = bisect.bisect_left(self._times.get(user, ()), float(timestamp))
        start = max(0, end - self._length) if self._length else 0
        return self._movies.get(user, [])[start:end]


def is_number(text):
    """Whether a text is a number, and not NaN."""
    try:
        return float(text) == float(text)
    except ValueError:
        return False
