"""The forms of a request: rows, columns, and one context with many candidates; over HTTP and Arrow Flight."""

import json
from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa

from ctr_trainer.serving.scoring.examples import LIMIT, Examples, check_count, column_of, of_arrow
from ctr_trainer.serving.scoring.raw_inputs import NUMBER, RawFeature, RawInputs, Where, shown
from ctr_trainer.serving.scoring.refusals import RequestRefused, TooLarge
from ctr_trainer.settings.servers import ScoreLimits

SIGNATURE = "serving_default"
_CONTEXT, _CANDIDATES = "context", "candidates"
_FORMS = '{"instances": [...]}, {"inputs": {...}} or {"context": {...}, "candidates": [...]}'


def of_json(inputs: RawInputs, body: bytes, limits: ScoreLimits) -> tuple[Examples, bool]:
    """Returns the examples of the body of a request for predictions, and whether they came in a form of rows.

    Raises:
      RequestRefused: the body has none of the forms, or see `Examples.of_instances` and `of_candidates`.
    """
    found = _parsed(body, limits, "the body")
    forms = ["instances" in found, "inputs" in found, _CONTEXT in found or _CANDIDATES in found]
    if forms.count(True) != 1:
        raise RequestRefused(f"expected a body of one of three forms: {_FORMS}")
    if found.get("signature_name", SIGNATURE) != SIGNATURE:
        raise RequestRefused(f'"signature_name": the only signature is {SIGNATURE!r}')
    if "instances" in found:
        return Examples.of_instances(inputs, found["instances"], limits), True
    if "inputs" in found:
        return Examples.of_columns(inputs, found["inputs"], limits), False
    return of_candidates(inputs, found.get(_CONTEXT, {}), found.get(_CANDIDATES), limits), True


def of_candidates(inputs: RawInputs, context: object, candidates: object, limits: ScoreLimits) -> Examples:
    """Returns an example for each candidate, which has the context's features and its own.

    The limits apply to the expanded examples.

    Args:
      inputs: the features that the model reads.
      context: {feature: value} of the features that all candidates share.
      candidates: a list with one {feature: value} per candidate, with all other features.
      limits: the limits of a request.

    Raises:
      RequestRefused: a feature is unknown, missing or in both places, a value is wrong, or there are too many values.
    """
    values = _context(context)
    if not isinstance(candidates, list) or not candidates:
        raise RequestRefused('"candidates": expected a list of candidates, as [{"feature": value, ...}]')
    check_count(len(candidates), limits, _CANDIDATES)
    for place, each in enumerate(candidates):
        if not isinstance(each, dict):
            raise RequestRefused(f'{_candidate(place)}: {shown(each)} is not an object, as {{"feature": value, ...}}')
    _check_names(inputs, values, candidates, _candidate)
    own = [f for f in inputs.features if f.name not in values]
    columns = {
        f.name: column_of(f, [each[f.name] for each in candidates], limits.max_list_length, _candidate) for f in own
    }
    return _examples(inputs, len(candidates), values, columns, limits)


def of_flight(inputs: RawInputs, batch: pa.RecordBatch, metadata: bytes, limits: ScoreLimits) -> Examples:
    """Returns the examples of a RecordBatch, or of the candidates in it if its metadata has a context.

    Args:
      inputs: the features that the model reads.
      batch: see `Examples.of_arrow`.
      metadata: b"", or the JSON `{"context": {feature: value}}`.
      limits: the limits of a request.

    Raises:
      RequestRefused: see `of_candidates`.
    """
    if not metadata:
        return Examples.of_arrow(inputs, batch, limits)
    found = _parsed(metadata, limits, "app_metadata")
    if found.keys() != {_CONTEXT}:
        raise RequestRefused('app_metadata is not {"context": {"feature": value, ...}}')
    values = _context(found[_CONTEXT])
    check_count(len(batch), limits, _CANDIDATES)
    _check_names(inputs, values, [batch.schema.names], lambda place: "columns")
    columns = {f.name: of_arrow(f, batch[f.name], limits, _candidate) for f in inputs.features if f.name not in values}
    return _examples(inputs, len(batch), values, columns, limits)


def _parsed(body: bytes, limits: ScoreLimits, what: str) -> dict:
    # Each value but the first follows a comma or a bracket; an empty object takes thirty times its two characters.
    most = 2 * limits.max_values
    if len(body) > most and sum(map(body.count, (b",", b"[", b"{"))) > most:
        raise TooLarge(f"{what} has over {most} commas and brackets, {LIMIT}: send fewer examples at a time")
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


def _check_names(
    inputs: RawInputs, context: Collection[str], candidates: Sequence[Collection[str]], where: Where
) -> None:
    inputs.check_known(context, _CONTEXT)
    rest = RawInputs(tuple(f for f in inputs.features if f.name not in context), inputs.ignored)
    right: object = None  # The names of the last candidate; most requests give each candidate the same.
    for place, each in enumerate(candidates):
        names = each.keys() if isinstance(each, dict) else each
        if names == right:
            continue
        both = next((name for name in each if name in context), None)
        if both is not None:
            raise RequestRefused(f"{where(place)}: feature {shown(both)} is in the context as well: give it once")
        inputs.check_known(each, where(place))
        rest.check_names(each, where(place))
        right = names


def _examples(
    inputs: RawInputs, count: int, context: Mapping[str, object], columns: dict, limits: ScoreLimits
) -> Examples:
    shared: list[RawFeature] = [f for f in inputs.features if f.name in context]
    for f in shared:
        columns[f.name] = column_of(f, [context[f.name]], limits.max_list_length, lambda place: _CONTEXT)
    size = count * sum(len(text) for f in shared if f.kind != NUMBER for text in _texts(columns[f.name][0]))
    if size > limits.max_body_bytes:
        raise TooLarge(
            f"context: {size} bytes if each of {count} candidates had its own copy, over {limits.max_body_bytes}, "
            f"{LIMIT}: send fewer candidates at a time"
        )
    return Examples(inputs, count, columns, frozenset(f.name for f in shared)).within(limits)


def _texts(value: bytes | list[bytes]) -> list[bytes]:
    return value if isinstance(value, list) else [value]


def _candidate(place: int) -> str:
    return f"candidate {place}"
