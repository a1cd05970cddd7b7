"""The raw values that a model reads, the checks of a request's values, and the errors of refused requests."""

import base64
import binascii
import dataclasses
import json
import math
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.messages.errors import UserError

NUMBER, TEXT, TEXTS, WEIGHTED = "number", "text", "texts", "weighted texts"
_EXPECTED = {
    NUMBER: "a number, or null for a missing one",
    TEXT: 'a text, an integer, or null for a missing one; or {"b64": ...} for bytes',
    TEXTS: 'a list of texts or integers, as ["a", "b"], or null for none',
    WEIGHTED: 'a list of texts with weights, as ["a{0}0.5", "b{0}2"], or null for none',
}
_WEIGHT = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_SHOWN = 80
# f(number of an example in a request) -> the example's name in a message.
Where = Callable[[int], str]
_MOST = float(np.finfo(np.float32).max)


class RequestRefused(UserError):
    """A request that gets no predictions. The message of the error is the answer.

    Attributes:
      status: the HTTP status.
      retry_secs: number of seconds after which the same request may succeed; None if it never will.
    """

    status = 400
    retry_secs: float | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The HTTP headers that belong to the status."""
        return {} if self.retry_secs is None else {"Retry-After": str(math.ceil(self.retry_secs))}


class WrongToken(RequestRefused):
    """The request has no token, or a wrong one."""

    status = 401

    @property
    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": "Bearer"}


class WrongHost(RequestRefused):
    """The request names a host that this server does not have."""

    status = 421


class HungUp(RequestRefused):
    """The client disconnected before the end of its request, so nobody reads the answer."""

    status = 499


class NotThere(RequestRefused):
    """This server has no such model, or no such path."""

    status = 404


class TooLarge(RequestRefused):
    """The request has too many bytes or values."""

    status = 413


class QueueFull(RequestRefused):
    """Too many examples wait."""

    status = 429
    retry_secs = 1


class PredictionFailed(RequestRefused):
    """The model failed, or its predictions cannot be sent."""

    status = 500


class NotReady(RequestRefused):
    """No model is loaded, or its rows cannot be read now."""

    status = 503
    retry_secs = 1


class TookTooLong(RequestRefused):
    """The predictions were not computed in time."""

    status = 504
    retry_secs = 1


@dataclasses.dataclass(frozen=True)
class RawFeature:
    """A feature of a request.

    Attributes:
      kind: `NUMBER`, `TEXT`, `TEXTS` or `WEIGHTED`.
      separator: the text between a value and its weight; None without weights.
    """

    name: str
    kind: str
    separator: str | None = None

    @property
    def expected(self) -> str:
        """A description of the allowed values."""
        return _EXPECTED[self.kind].replace("{0}", self.separator or "")

    @property
    def is_list(self) -> bool:
        return self.kind in (TEXTS, WEIGHTED)


@dataclasses.dataclass(frozen=True)
class RawInputs:
    """The features of a request.

    Attributes:
      features: the features that the model reads. A request must contain each of them.
      ignored: names of the spec's features that this model does not read. A request may contain them.
    """

    features: tuple[RawFeature, ...]
    ignored: frozenset[str]

    @classmethod
    def of(cls, spec: FeatureSpec, names: Collection[str]) -> "RawInputs":
        """Returns the inputs of a model that reads the features with these names."""
        features = [RawFeature(f.name, NUMBER) for f in spec.dense]
        for f in spec.sparse:
            kind = NUMBER if f.is_bucketised else TEXT
            if f.combiner is not None:
                kind = TEXTS if f.weight_separator is None else WEIGHTED
            features.append(RawFeature(f.name, kind, f.weight_separator))
        read = tuple(feature for feature in features if feature.name in names)
        return cls(read, frozenset(f.name for f in features if f.name not in names))

    def by_name(self) -> dict[str, str]:
        """Returns a dict of feature -> what its values are; "" for an ignored feature."""
        weights = {f.name: f" with {f.separator!r}" if f.separator else "" for f in self.features}
        return {**dict.fromkeys(sorted(self.ignored), ""), **{f.name: f.kind + weights[f.name] for f in self.features}}


def shown(value: object) -> str:
    """Returns a shortened value for a message. Lone surrogates, which JSON can contain, are shown as escapes."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def refuse(feature: RawFeature, value: object, place: int, where: Where, expected: str | None = None) -> RequestRefused:
    """Returns the error for a value of example number `place`. `expected` replaces the description of the feature."""
    wanted = expected or feature.expected
    return RequestRefused(f"{where(place)}, feature {feature.name!r}: {shown(value)} is not {wanted}")


def numbers(feature: RawFeature, values: Sequence[Any], where: Where) -> np.ndarray:
    """Returns a column of JSON numbers as float32[B], NaN for null. Refuses a value that is not a float32 number."""
    for place, value in enumerate(values):
        if value is not None and (type(value) not in (float, int) or not _fits(value)):
            raise refuse(feature, value, place, where)
    return np.array([math.nan if value is None else value for value in values], np.float32)


def texts(feature: RawFeature, values: Sequence[Any], where: Where) -> np.ndarray:
    """Returns a column of JSON texts as object[B] of bytes, b"" for null. Refuses a value that is not a text."""
    found = np.empty(len(values), object)
    try:
        found[:] = list(map(str.encode, values))  # Nearly all columns contain only strings.
    except (TypeError, UnicodeEncodeError):
        for place, value in enumerate(values):
            found[place] = _bytes(feature, value, value, place, where)
    return found


def lists(feature: RawFeature, values: Sequence[Any], most: int, where: Where) -> list[list[bytes]]:
    """Returns a column of JSON lists, each of at most `most` values, as lists of bytes; [] for null.

    Raises:
      RequestRefused: a value is not a list of texts, a list has more values, or a weight is not a number.
    """
    found = []
    for place, value in enumerate(values):
        if value is None:
            value = []
        if not isinstance(value, list):
            raise refuse(feature, value, place, where)
        check_length(feature, len(value), place, most, where)
        found.append([_bytes(feature, each, value, place, where) for each in value])
    check_weights(feature, found, where)
    return found


def check_length(feature: RawFeature, length: int, place: int, most: int, where: Where) -> None:
    """Refuses a list of example `place` that has more than `most` values."""
    if length > most:
        said = f"{length} values, above the {most} of max_list_length"
        raise RequestRefused(f"{where(place)}, feature {feature.name!r}: {said}")


def check_weights(feature: RawFeature, values: Sequence[Sequence[bytes]], where: Where) -> None:
    """Refuses lists of bytes in which a weight is not a number, if the feature has weights."""
    if feature.separator is None:
        return
    separator = feature.separator.encode()
    for place, value in enumerate(values):
        for each in value:
            _, has_weight, weight = each.rpartition(separator)
            if has_weight and not (_WEIGHT.fullmatch(weight) and _fits(float(weight))):
                raise refuse(feature, each.decode(errors="replace"), place, where, "a text whose weight is a number")


def _fits(value: float) -> bool:
    try:
        return math.isnan(value) or abs(float(value)) <= _MOST
    except OverflowError:
        return False


def _bytes(feature: RawFeature, value: object, whole: object, place: int, where: Where) -> bytes:
    if value is None:
        return b""
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise refuse(feature, whole, place, where, "a text of whole characters") from None
    if type(value) is int:
        return str(value).encode()
    if isinstance(value, dict) and value.keys() == {"b64"}:
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise refuse(feature, value, place, where, "base64") from None
    raise refuse(feature, whole, place, where)
