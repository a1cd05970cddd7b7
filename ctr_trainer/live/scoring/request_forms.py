"""The forms of a request: rows, columns, and one context with many candidates; over HTTP and Arrow Flight."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping

import pyarrow as pa

from ctr_trainer.live.publication.raw_inputs import NUMBER, RawFeature, RawInputs
from ctr_trainer.live.scoring.examples import LIMIT, Examples, Where, column_of, of_arrow
from ctr_trainer.live.scoring.refusals import RequestRefused, shown
from ctr_trainer.settings.command_flags import ScoreLimits

SIGNATURE = "serving_default"
_CONTEXT, _CANDIDATES, _CANDIDATE = "context", "candidates", "candidate"
_FORMS = '{"instances": [...]}, {"inputs": {...}} or {"context": {...}, "candidates": [...]}'


def of_json(inputs: RawInputs, body: bytes, limits: ScoreLimits) -> tuple[Examples, bool]:
    """Returns the examples in the body of a prediction request, and whether the body consists of rows."""
    found = _parsed(body, limits, "the body")
    forms = ["instances" in found, "inputs" in found, _CONTEXT in found or _CANDIDATES in found]
    if forms.count(True) != 1:
        raise RequestRefused(f"expected a body of one of three forms: {_FORMS}")
    if found.get("signature_name", SIGNATURE) != SIGNATURE:
        raise RequestRefused(f'"signature_name": the only signature is {SIGNATURE!r}')
    if "instances" in found:
        return of_instances(inputs, found["instances"], limits), True
    if "inputs" in found:
        return _of_columns(inputs, found["inputs"], limits), False
    return of_candidates(inputs, found.get(_CONTEXT, {}), found.get(_CANDIDATES), limits), True


def of_instances(inputs: RawInputs, instances: object, limits: ScoreLimits) -> Examples:
    """Returns the examples of a list with one {feature: value} per example.

    Raises:
      RequestRefused: a feature is unknown or missing, a value is wrong, or there are too many values.
    """
    return _of_rows(inputs, {}, instances, limits, "instances", "example")


def of_candidates(inputs: RawInputs, context: object, candidates: object, limits: ScoreLimits) -> Examples:
    """Returns an example for each candidate, with the features of the context and of the candidate.

    The limits apply to the expanded examples.

    Args:
      context: {feature: value} of the features that all candidates share.
      candidates: a list with one {feature: value} per candidate, with all other features.

    Raises:
      RequestRefused: see `of_instances`; or the context and a candidate have the same feature.
    """
    return _of_rows(inputs, _context(context), candidates, limits, _CANDIDATES, _CANDIDATE)


def _of_rows(
    inputs: RawInputs, context: Mapping[str, object], rows: object, limits: ScoreLimits, key: str, what: str
) -> Examples:
    where = _numbered(what)
    if not isinstance(rows, list) or not rows:
        raise RequestRefused(f'"{key}": expected a list of {what}s, as [{{"feature": value, ...}}]')
    _check_count(len(rows), limits, f"{what}s")
    _check_names(inputs, context, _names(rows, where), where)
    own = [f for f in inputs.features if f.name not in context]
    columns = {f.name: column_of(f, [each[f.name] for each in rows], limits.max_list_length, where) for f in own}
    return _examples(inputs, len(rows), context, columns, limits)


def _of_columns(inputs: RawInputs, columns: object, limits: ScoreLimits) -> Examples:
    """Returns the examples of {feature: list with one value per example}."""
    if not isinstance(columns, dict):
        raise RequestRefused('"inputs": expected the columns, as {"feature": [value, ...], ...}')
    _check_names(inputs, (), [columns], lambda place: '"inputs"')
    first = inputs.features[0].name if inputs.features else ""
    for feature in inputs.features:
        values = columns[feature.name]
        if not isinstance(values, list) or not values:
            raise RequestRefused(f"feature {feature.name!r}: {shown(values)} is not a list with one value per example")
        if len(values) != len(columns[first]):
            raise RequestRefused(
                f"feature {feature.name!r}: {len(values)} values, and {first!r} has {len(columns[first])}: expected "
                "one value per example"
            )
    count = len(columns[first]) if inputs.features else 0
    _check_count(count, limits, "examples")
    made = {f.name: column_of(f, columns[f.name], limits.max_list_length) for f in inputs.features}
    return _examples(inputs, count, {}, made, limits)


def of_flight(inputs: RawInputs, batch: pa.RecordBatch, metadata: bytes, limits: ScoreLimits) -> Examples:
    """Returns the examples, or the candidates, in a RecordBatch with one column per feature.

    Numbers may have any numeric type. Texts are strings, binaries or integers, plain or dictionary-encoded, and lists
    are lists of texts. A null is a missing value.

    Args:
      metadata: b"", or for candidates the JSON `{"context": {feature: value}}`.
    """
    context, what = {}, "example"
    if metadata:
        found = _parsed(metadata, limits, "app_metadata")
        if found.keys() != {_CONTEXT}:
            raise RequestRefused('app_metadata is not {"context": {"feature": value, ...}}')
        context, what = _context(found[_CONTEXT]), _CANDIDATE
    _check_names(inputs, context, [dict.fromkeys(batch.schema.names)], lambda place: "columns")
    _check_count(len(batch), limits, f"{what}s")
    where, own = _numbered(what), [f for f in inputs.features if f.name not in context]
    columns = {f.name: of_arrow(f, batch[f.name], limits, where) for f in own}
    return _examples(inputs, len(batch), context, columns, limits)


def _parsed(body: bytes, limits: ScoreLimits, what: str) -> dict:
    # Each value except the first follows a comma or a bracket. An empty object takes 30 times the memory of its text.
    most = 2 * limits.max_values
    if len(body) > most and sum(map(body.count, (b",", b"[", b"{"))) > most:
        raise RequestRefused(
            f"{what} has over {most} commas and brackets, {LIMIT}: send fewer examples at a time", status=413
        )
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestRefused(f"{what} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise RequestRefused(f"{what} is not a JSON object; expected {_FORMS}")
    return found


def _context(context: object) -> dict:
    if not isinstance(context, dict):
        raise RequestRefused(f'"context": {shown(context)} is not an object, as {{"feature": value, ...}}')
    return context


def _check_count(count: int, limits: ScoreLimits, what: str) -> None:
    """Refuses a request that has no examples, or too many."""
    if not 0 < count <= limits.max_examples:
        raise RequestRefused(f"{count} {what}: expected 1 to {limits.max_examples} (max_examples)")


def _names(rows: list, where: Where) -> Iterator[Collection[str]]:
    for place, each in enumerate(rows):
        if not isinstance(each, dict):
            raise RequestRefused(f'{where(place)}: {shown(each)} is not an object, as {{"feature": value, ...}}')
        yield each.keys()


def _check_names(inputs: RawInputs, context: Collection[str], rows: Iterable[Collection[str]], where: Where) -> None:
    """Refuses an unknown feature, and a row that lacks a feature or repeats a feature of the context."""
    _check_known(inputs, context, _CONTEXT)
    right: object = None  # The names of the last row. In most requests, all rows have the same names.
    for place, names in enumerate(rows):
        if names == right:
            continue
        both = next((name for name in names if name in context), None)
        if both is not None:
            raise RequestRefused(f"{where(place)}: feature {shown(both)} is in the context as well: give it once")
        _check_known(inputs, names, where(place))
        missing = next((f for f in inputs.features if f.name not in names and f.name not in context), None)
        if missing is not None:
            raise RequestRefused(f"{where(place)}: feature {missing.name!r} is missing: expected {missing.expected}")
        right = names


def _check_known(inputs: RawInputs, names: Collection[str], where: str) -> None:
    known = {feature.name for feature in inputs.features}
    unknown = next((name for name in names if name not in known and name not in inputs.ignored), None)
    if unknown is not None:
        reads = ", ".join(feature.name for feature in inputs.features) or "no feature"
        raise RequestRefused(f"{where}: unknown feature {shown(unknown)}; the model reads {reads}")


def _examples(
    inputs: RawInputs, count: int, context: Mapping[str, object], columns: dict, limits: ScoreLimits
) -> Examples:
    shared: list[RawFeature] = [f for f in inputs.features if f.name in context]
    for f in shared:
        columns[f.name] = column_of(f, [context[f.name]], limits.max_list_length, lambda place: _CONTEXT)
    size = count * sum(len(text) for f in shared if f.kind != NUMBER for text in _texts(columns[f.name][0]))
    if size > limits.max_body_bytes:
        raise RequestRefused(
            f"context: {size} bytes if each of {count} candidates had its own copy, over {limits.max_body_bytes}, "
            f"{LIMIT}: send fewer candidates at a time",
            status=413,
        )
    examples = Examples(inputs, count, columns, frozenset(f.name for f in shared))
    if examples.values > limits.max_values:
        raise RequestRefused(
            f"{count} examples have {examples.values} values, with each list padded to the longest of its feature, "
            f"over {limits.max_values}, {LIMIT}: send fewer examples at a time, or shorter lists",
            status=413,
        )
    return examples


def _texts(value: bytes | list[bytes]) -> list[bytes]:
    return value if isinstance(value, list) else [value]


def _numbered(what: str) -> Where:
    return lambda place: f"{what} {place}"
