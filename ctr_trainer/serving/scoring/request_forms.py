"""The forms of a request: rows, columns, and one context with many candidates; over HTTP and Arrow Flight."""

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa

from ctr_trainer.embedding.index.key_kernels import DistinctKeys
from ctr_trainer.embedding.worker.lookup import Lookup
from ctr_trainer.features.spec import FeatureSpec, TableFeatures
from ctr_trainer.features.tensors import EMBEDDING, LINEAR, MASK, SEQUENCE
from ctr_trainer.serving.export.ranking import CANDIDATES, COLUMNS, CONTEXT
from ctr_trainer.serving.export.raw_keys import KEYS, SPLITS, flat_order
from ctr_trainer.serving.scoring.examples import LIMIT, Examples, check_count, column_of, of_arrow
from ctr_trainer.serving.scoring.raw_inputs import NUMBER, RawFeature, RawInputs, RequestRefused, TooLarge, Where, shown
from ctr_trainer.serving.scoring.tower import Arrays, Read, lookup_of
from ctr_trainer.settings.command_flags import ScoreLimits

SIGNATURE = "serving_default"
_CONTEXT, _CANDIDATES = "context", "candidates"
_FORMS = '{"instances": [...]}, {"inputs": {...}} or {"context": {...}, "candidates": [...]}'


def look_up(
    spec: FeatureSpec, names: Collection[str], keys: Arrays, count: int, context: Collection[str], read: Read
) -> tuple[dict[str, np.ndarray], int]:
    """Makes the inputs of the signature `ranking` that come from rows, see `export.ranking.RankedRows`.

    Args:
      spec: the features of the tower.
      names: names of the inputs of `serving_default`, see `export.receivers.RowInputs`.
      keys: the outputs of the signature `ranking_keys`.
      count: number of candidates.
      context: names of the features that all candidates share.
      read: reads each distinct key of a table once.

    Returns:
      (dict of name -> array, number of distinct keys that were read).
    """
    inputs: dict[str, np.ndarray] = {}
    distinct_keys = 0
    for table in spec.tables:
        kinds = [kind for kind in (EMBEDDING, LINEAR) if f"{kind}/{table.name}" in names]
        sequences = tuple(f for f in table.sequences if f"{SEQUENCE}/{f.name}" in names)
        for f in table.sequences:
            if f"{MASK}/{f.name}" in names:
                mask = np.arange(f.max_length) < np.diff(keys[f"{SPLITS}/{f.name}"])[:, None]
                inputs[f"{MASK}/{f.name}"] = mask.astype(np.float32)
        if not kinds and not sequences:
            continue
        sides = {}
        for side, size in ((CONTEXT, 1), (CANDIDATES, count)):
            features = _of_side(table, sequences, context, side == CONTEXT)
            own = {**keys, f"{KEYS}/{table.name}": _singles(table, features, keys, count, context, size)}
            sides[side] = features, lookup_of(features, bool(kinds), features.sequences, own, size)
        rows, read_keys = _read(table.name, [lookup for _, lookup in sides.values()], read)
        distinct_keys += read_keys
        for (side, (features, lookup)), its_rows in zip(sides.items(), rows, strict=True):
            starts = {EMBEDDING: (0, table.dim), LINEAR: (its_rows.shape[1] - 1, 1)}
            for kind in kinds:
                inputs[f"{side}/{kind}/{table.name}"] = lookup.gather(its_rows, *starts[kind])
            for number, f in enumerate(features.sequences):
                inputs[f"{SEQUENCE}/{f.name}"] = lookup.gather_sequence(number, its_rows, *starts[EMBEDDING])
        places = {f.name: place for place, f in enumerate(table.pooled)}
        order = [places[f.name] for features, _ in sides.values() for f in features.pooled]
        inputs[f"{COLUMNS}/{table.name}"] = np.array(order, np.int32)
    return inputs, distinct_keys


def _of_side(table: TableFeatures, sequences: tuple, context: Collection[str], is_context: bool) -> TableFeatures:
    """Returns the features of a table that belong to the context, or the others."""
    parts = (table.single, table.bags, sequences)
    single, bags, lists = (tuple(f for f in part if (f.name in context) == is_context) for part in parts)
    return dataclasses.replace(table, single=single, bags=bags, sequences=lists)


def _singles(
    table: TableFeatures, features: TableFeatures, keys: Arrays, count: int, context: Collection[str], size: int
) -> np.ndarray:
    """Returns int64[size, F], the keys of the single-valued features of one side."""
    found, start = {}, 0
    for f in flat_order(table.single) if features.single else ():
        length = 1 if f.name in context else count
        found[f.name] = keys[f"{KEYS}/{table.name}"][start : start + length]
        start += length
    columns = [found[f.name] for f in features.single]
    return np.ascontiguousarray(np.stack(columns, 1)) if columns else np.zeros((size, 0), np.int64)


def _read(table: str, lookups: list[Lookup], read: Read) -> tuple[list[np.ndarray], int]:
    """Returns the rows of each lookup, and the number of distinct keys; a key of both is read once."""
    distinct = DistinctKeys(sum(len(lookup.unique) for lookup in lookups))
    numbers = [distinct.numbers(lookup.unique) for lookup in lookups]
    rows = read(table, distinct.keys)
    return [rows[each] for each in numbers], len(distinct.keys)


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
