"""The forms of a request: rows, columns, and one context with many candidates; as JSON or as a stream of Arrow."""

import enum
import functools
import json
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence

import orjson

from ctr_trainer.export.raw_inputs import NUMBER, RawColumn, RawInputs, by_kind
from ctr_trainer.live.arrow_messages import ArrowMessages, BadArrow, TooMuchArrow
from ctr_trainer.live.scoring.examples import LIMIT, Block, Examples, arrow_block_of, block_of
from ctr_trainer.live.scoring.refusals import RequestRefused, shown
from ctr_trainer.settings.command_flags import ScoreLimits

SIGNATURE, ARROW = "serving_default", "application/vnd.apache.arrow.stream"
_CONTEXT, _CANDIDATES, _CANDIDATE = "context", "candidates", "candidate"
_FORMS = '{"instances": [...]}, {"inputs": {...}} or {"context": {...}, "candidates": [...]}'


class Form(enum.Enum):
    """The form of an answer."""

    ROWS, COLUMNS, ARROW = "rows", "columns", "arrow"


def of_json(inputs: RawInputs, body: bytearray, limits: ScoreLimits) -> tuple[Examples, Form]:
    """Returns the examples in the body of a prediction request, and the form of its answer."""
    found = _parsed(body, limits, "the body")
    forms = ["instances" in found, "inputs" in found, _CONTEXT in found or _CANDIDATES in found]
    if forms.count(True) != 1:
        raise RequestRefused(f"expected a body of one of three forms: {_FORMS}")
    if found.get("signature_name", SIGNATURE) != SIGNATURE:
        raise RequestRefused(f'"signature_name": the only signature is {SIGNATURE!r}')
    if "inputs" in found:
        return _of_columns(inputs, found["inputs"], limits), Form.COLUMNS
    if "instances" in found:
        return of_rows(inputs, found["instances"], limits), Form.ROWS
    return of_rows(inputs, found.get(_CANDIDATES), limits, _object(found.get(_CONTEXT, {}), '"context"')), Form.ROWS


def of_rows(inputs: RawInputs, rows: object, limits: ScoreLimits, context: Mapping | None = None) -> Examples:
    """Returns the examples of a list with one {column: value} per example, or per candidate of a context.

    The limits apply to the candidates with all columns of the context.

    `context`: {column: value} of the columns that all candidates share; None if the rows are no candidates.

    Raises RequestRefused: a column is unknown, missing or in the context as well, a value is wrong, or there are too
    many values.
    """
    key, what = ("instances", "example") if context is None else (_CANDIDATES, _CANDIDATE)
    shared, where = context or {}, f"{what} {{}}"
    if not isinstance(rows, list) or not rows:
        raise RequestRefused(f'"{key}": expected a list of {what}s, as [{{"column": value, ...}}]')
    _check_count(len(rows), limits, what)
    names = [f.name for f in inputs.columns if f.name not in shared]
    take = operator.itemgetter(*names, *names[:1]) if names else dict.values  # With one name, it returns no tuple.
    try:
        values = [*map(take, rows)]
        has_others = {*map(len, rows)} != {len(names)}
    except (KeyError, TypeError):
        has_others = True
    if shared or has_others:  # Otherwise, each row has exactly these names.
        _check_names(inputs, shared, (_object(each, f"{what} {place}") for place, each in enumerate(rows)), where)
    given = dict(zip(names, zip(*values, strict=True), strict=False))
    blocks = [block_of(kind, given, limits.max_list_length, where) for kind in _own(inputs, shared)]
    return _examples(inputs, len(rows), shared, blocks, limits)


def _of_columns(inputs: RawInputs, columns: object, limits: ScoreLimits) -> Examples:
    """Returns the examples of {column: list with one value per example}."""
    if not isinstance(columns, dict):
        raise RequestRefused('"inputs": expected the columns, as {"column": [value, ...], ...}')
    _check_names(inputs, (), [columns], '"inputs"')
    first = inputs.columns[0].name if inputs.columns else ""
    for raw in inputs.columns:
        values = columns[raw.name]
        if not isinstance(values, list) or not values:
            raise RequestRefused(f"column {raw.name!r}: {shown(values)} is not a list with one value per example")
        if len(values) != len(columns[first]):
            raise RequestRefused(
                f"column {raw.name!r}: {len(values)} values, and {first!r} has {len(columns[first])}: expected "
                "one value per example"
            )
    count = len(columns[first]) if inputs.columns else 0
    _check_count(count, limits, "example")
    blocks = [block_of(kind, columns, limits.max_list_length, "example {}") for kind in inputs.kinds]
    return _examples(inputs, count, {}, blocks, limits)


def of_arrow(inputs: RawInputs, body: bytearray, limits: ScoreLimits) -> tuple[Examples, Form]:
    """Returns the examples, or the candidates, in an Arrow IPC stream with the columns of the examples.

    Numbers may have any numeric type. Texts are strings, binaries or integers, plain or dictionary-encoded, and lists
    are lists of texts. A null is a missing value. The schema's metadata `context` is the JSON {column: value} of the
    columns that all candidates share.
    """
    try:
        table = _messages(limits).read_all(bytes(body))
    except BadArrow as error:
        status = 413 if isinstance(error, TooMuchArrow) else 400
        raise RequestRefused(f"the body {error}", status) from None
    context, what = dict[str, object](), "example"
    if text := (table.schema.metadata or {}).get(_CONTEXT.encode()):
        context, what = _parsed(text, limits, "the metadata `context` of the schema"), _CANDIDATE
    names = table.schema.names
    _check_names(inputs, context, [dict.fromkeys(names)], "columns")
    _check_count(len(table), limits, what)
    batches = table.to_batches()
    batch = batches[0] if len(batches) == 1 else table.combine_chunks().to_batches()[0]
    arrays = dict(zip(names, batch.columns, strict=True))
    blocks = [arrow_block_of(kind, arrays, limits, f"{what} {{}}") for kind in _own(inputs, context)]
    return _examples(inputs, len(table), context, blocks, limits), Form.ARROW


@functools.lru_cache
def _messages(limits: ScoreLimits) -> ArrowMessages:
    """Returns a reader of one thread, which need not check the same schema twice."""
    return ArrowMessages(limits.max_body_bytes, limits.max_values, LIMIT)


def _parsed(body: bytes | bytearray, limits: ScoreLimits, what: str) -> dict:
    # Each value except the first follows a comma or a bracket. An empty object takes 30 times the memory of its text.
    most = 2 * limits.max_values
    if len(body) > most and sum(map(body.count, (b",", b"[", b"{"))) > most:
        raise RequestRefused(
            f"{what} has over {most} commas and brackets, {LIMIT}: send fewer examples at a time", status=413
        )
    try:
        found = _loaded(body)
    except (ValueError, RecursionError) as error:
        raise RequestRefused(f"{what} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise RequestRefused(f"{what} is not a JSON object; expected {_FORMS}")
    return found


def _loaded(body: bytes | bytearray) -> object:
    try:
        return orjson.loads(body)
    except ValueError:
        return json.loads(body)  # It also takes NaN, as Python's clients send.


def _object(value: object, where: str) -> dict:
    if not isinstance(value, dict):
        raise RequestRefused(f'{where}: {shown(value)} is not an object, as {{"column": value, ...}}')
    return value


def _check_count(count: int, limits: ScoreLimits, what: str) -> None:
    """Refuses a request that has no examples, or too many."""
    if not 0 < count <= limits.max_examples:
        raise RequestRefused(f"{count} {what}s: expected 1 to {limits.max_examples} (max_examples)")


def _check_names(inputs: RawInputs, context: Collection[str], rows: Iterable[Mapping], where: str) -> None:
    """Refuses an unknown column, and a row that lacks a column or repeats a column of the context."""
    _check_known(inputs, context, _CONTEXT)
    right: object = None  # The names of the last row. In most requests, all rows have the same names in one order.
    for place, row in enumerate(rows):
        names = [*row]
        if names == right:
            continue
        both = next((name for name in names if name in context), None)
        if both is not None:
            raise RequestRefused(f"{where.format(place)}: column {shown(both)} is in the context as well: give it once")
        _check_known(inputs, names, where.format(place))
        missing = next((f for f in inputs.columns if f.name not in row and f.name not in context), None)
        if missing is not None:
            raise RequestRefused(
                f"{where.format(place)}: column {missing.name!r} is missing: expected {missing.expected}"
            )
        right = names


def _check_known(inputs: RawInputs, names: Collection[str], where: str) -> None:
    unknown = next((name for name in names if name not in inputs.known), None)
    if unknown is not None:
        reads = ", ".join(raw.name for raw in inputs.columns) or "no column"
        raise RequestRefused(f"{where}: unknown column {shown(unknown)}; the model reads {reads}")


def _own(inputs: RawInputs, context: Collection[str]) -> tuple[tuple[RawColumn, ...], ...]:
    """Returns the columns of which each example has its own value, by kind."""
    return by_kind(f for f in inputs.columns if f.name not in context) if context else inputs.kinds


def _examples(
    inputs: RawInputs, count: int, context: Mapping[str, object], own: Sequence[Block], limits: ScoreLimits
) -> Examples:
    shared = [f for f in inputs.columns if f.name in context] if context else []
    given = {f.name: [context[f.name]] for f in shared}
    blocks = [block_of(kind, given, limits.max_list_length, _CONTEXT) for kind in by_kind(shared)]
    texts = [text for each in blocks if each.columns[0].kind != NUMBER for text in each.values[:, 0]]
    size = count * sum(sum(map(len, text)) if isinstance(text, list) else len(text) for text in texts)
    if size > limits.max_body_bytes:
        raise RequestRefused(
            f"context: {size} bytes if each of {count} candidates had its own copy, over {limits.max_body_bytes}, "
            f"{LIMIT}: send fewer candidates at a time",
            status=413,
        )
    examples = Examples(inputs, count, (*blocks, *own), frozenset(f.name for f in shared))
    if examples.values > limits.max_values:
        raise RequestRefused(
            f"{count} examples have {examples.values} values, with each list padded to the longest of its column, "
            f"over {limits.max_values}, {LIMIT}: send fewer examples at a time, or shorter lists",
            status=413,
        )
    return examples
