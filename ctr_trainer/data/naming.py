"""Judges by a column's name what its whole numbers mean."""

import re

_ID = frozenset(
    """
    id ids uid iid user usr member customer client visitor account item product sku goods article movie film song
    track video book shop store seller vendor merchant publisher advertiser brand company campaign creative ad
    adgroup banner channel source site domain page url query keyword app device os browser model carrier network isp
    ip zip postcode postal code country city region state province county district area location place lang language
    locale currency category cat cate categ subcategory genre type kind class segment cluster group bucket level tag
    label slot position gender sex occupation job profession education status hour weekday dow day week month
    quarter no key hash session cookie
    """.split()
)
_NUMBER = frozenset(
    """
    age price cost amount amt revenue sales spend budget bid fee tax salary income wage balance gain loss profit
    margin discount paid num number count cnt counts freq frequency total sum avg mean median min max std var qty
    quantity size length len width height depth weight area volume duration seconds minutes hours days weeks months
    years elapsed dwell distance score rate ratio ctr cvr pct percent percentage prob probability rating stars votes
    reviews views clicks impressions visits likes shares orders purchases points speed temperature latitude
    longitude lat lon lng
    """.split()
)
_COUNTED = {"n", "nb", "num", "number", "count", "cnt", "total", "sum", "avg", "mean", "max", "min", "per", "since"}
_TIME = {"time", "timestamp", "ts", "date", "datetime", "epoch", "unix"}
_ID_ENDINGS = ("id", "code", "zip")  # Endings of names in one word, such as userid.


def words(name):
    """-> the words of a name in lower case: user and id for `user_id`, `userId` and `user.id2`."""
    spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", name)
    return [word.lower() for word in re.findall(r"[^\W\d_]+", spaced)]


def is_number(name):
    """-> whether a name is that of a number, such as `age`, `hours_per_week` and `user_count`."""
    return _says(name) == "number"


def is_id(name):
    """-> whether a name is that of an id, such as `user`, `device_type` and `movieid`."""
    return _says(name) == "id"


def is_time(name):
    """-> whether a name is that of a time, such as `timestamp` and `click_time`."""
    return not _TIME.isdisjoint(words(name))


def _says(name):
    """Returns what the word that decides says, `number` or `id`, or None.

    The last known word decides (`price` of `item_price`), or one of `_COUNTED` at any place. A number of something
    (`account_number`) may be its id or its count, so that such a name says nothing and the values decide.
    """
    found = words(name)
    if len(found) > 1 and found[-1] == "number":
        return None
    if len(found) > 1 and _COUNTED.intersection(found):
        return "number"
    for word in reversed(found):
        if word in _NUMBER:
            return "number"
        if word in _ID:
            return "id"
    return "id" if found and found[-1].endswith(_ID_ENDINGS) else None
