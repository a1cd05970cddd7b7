"""The `libsvm` and `libffm` formats. Each line is an example: a label, then weighted indices, separated by blanks.

libsvm, libfm, liblinear, SVMlight:  label [qid:number] index:value index:value ... [# comment]
libffm:                              label field:index:value field:index:value ...
"""

import functools
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.data import typed
from ctr_trainer.data.blocks import BadRow, Block, Chunk
from ctr_trainer.data.conversion.text_blocks import text_blocks
from ctr_trainer.data.source import SourceFile
from ctr_trainer.features.spec import FeatureSpec

LABEL, FEATURES, QUERY, FIELD = "label", "features", "qid", "field"
NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_INDEX = r"[!-\"$-9;-~]+"  # Printable characters, except # and :
WEIGHTED = rf"{_INDEX}:{NUMBER}"
OF_FIELD = rf"\d+:{WEIGHTED}"
QUERY_TOKEN = rf"qid:{_INDEX}"


def read(
    files: Iterable[SourceFile], spec: FeatureSpec | None, time: str | None, pattern: str = WEIGHTED
) -> Iterator[Block]:
    """Yields blocks with `label`, `qid` and, for the pattern WEIGHTED, `features`.

    With OF_FIELD, they have a column such as `field3` for each field that the spec needs. Both are lists of
    `index:value`, or of `index` if the feature has no weights. If the spec is unlabelled, lines may lack the label.
    Without a spec, blocks have the label and all features or fields, with weights.
    """
    for file in files:
        first = 1
        for text in text_blocks(file.path):
            yield functools.partial(_chunk, spec, time, pattern, file.path, text, first)
            first += text.count(b"\n")


def _chunk(
    spec: FeatureSpec | None, time: str | None, pattern: str, file: str, text: bytes, first: int, bad_rows: list[BadRow]
) -> Chunk:
    wanted = typed.uses(spec, time)
    lines, numbers = _good_lines(text, file, first, pattern, spec is None or spec.labelled, bad_rows)
    if spec is None:
        found = _columns(lines, pattern)
        del found[QUERY]
    else:
        found = _columns(lines, pattern, [name for name in wanted if name.startswith(FIELD)])
        weighted = {f.column for f in spec.sparse if f.weight_separator is not None}
        for name in found.keys() - {LABEL, QUERY} - weighted:
            indices = pc.replace_substring_regex(found[name].values, ":[^:]*$", "")
            found[name] = pa.ListArray.from_arrays(found[name].offsets, indices)
        typed.check(wanted, list(found), file, spec)
    return typed.as_chunk(pa.table({name: found[name] for name in wanted or found}), wanted, file, numbers, bad_rows)


def _good_lines(
    text: bytes, file: str, first: int, pattern: str, labelled: bool, bad_rows: list[BadRow]
) -> tuple[pa.Array, np.ndarray]:
    """Returns (good lines as bytes, their numbers). `pattern` matches a token; a line has a label if `labelled`."""
    label = rf"(?:{NUMBER}(?:\s|$))" + ("" if labelled else "?")
    whole = rf"^\s*{label}\s*(?:{QUERY_TOKEN}(?:\s+|$))?(?:{pattern}(?:\s+|$))*(?:#.*)?$"
    block = text.split(b"\n")[:-1]
    lines, numbers = pa.array(block, pa.binary()), np.arange(first, first + len(block))
    filled = ~pc.match_substring_regex(lines, r"^\s*(?:#.*)?$").to_numpy(zero_copy_only=False)
    good = pc.match_substring_regex(lines, whole).to_numpy(zero_copy_only=False)
    for at in np.flatnonzero(filled & ~good):
        bad_rows.append(BadRow(file, int(numbers[at]), *_fault(block[at], pattern)))
    return lines.filter(pa.array(filled & good)), numbers[filled & good]


def _columns(lines: pa.Array, pattern: str, fields: Sequence[str] | None = None) -> dict[str, pa.Array]:
    """Returns the label, the query and lists of `index:value` of good lines: of `fields`, or of all."""
    rows, texts = len(lines), pc.replace_substring_regex(lines, r"#.*$", "").cast(pa.string())
    lists = pc.ascii_split_whitespace(pc.ascii_trim_whitespace(texts))
    tokens, owner = lists.flatten(), pc.list_parent_indices(lists).to_numpy()
    is_query = pc.starts_with(tokens, "qid:").to_numpy(zero_copy_only=False)
    is_label = ~is_query & ~pc.match_substring(tokens, ":").to_numpy(zero_copy_only=False)
    is_value = ~is_query & ~is_label
    queries = pc.replace_substring(tokens.filter(pa.array(is_query)), "qid:", "")
    columns = {
        LABEL: _scattered(tokens.filter(pa.array(is_label)), owner[is_label], rows),
        QUERY: _scattered(queries, owner[is_query], rows),
    }
    tokens, owner = tokens.filter(pa.array(is_value)), owner[is_value]
    if pattern == WEIGHTED:
        return columns | {FEATURES: _lists(tokens, owner, rows)}
    parts = pc.split_pattern(tokens, ":", max_splits=1)
    of_token, values = pc.list_element(parts, 0), pc.list_element(parts, 1)
    if fields is None:
        fields = [f"{FIELD}{field}" for field in sorted(of_token.unique().to_pylist(), key=int)]
    for name in fields:
        of = pc.equal(of_token, name.removeprefix(FIELD))
        columns[name] = _lists(values.filter(of), owner[of.to_numpy(zero_copy_only=False)], rows)
    return columns


def _lists(values: pa.Array, owner: np.ndarray, rows: int) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(np.searchsorted(owner, np.arange(rows + 1)).astype(np.int32)), values)


def _scattered(values: pa.Array, owner: np.ndarray, rows: int) -> pa.Array:
    """Returns string[rows], null for a row without a value."""
    place = np.full(rows, -1)
    place[owner] = np.arange(len(owner))
    return values.take(pa.array(place, mask=place < 0))


def _fault(line: bytes, pattern: str) -> tuple[str, str, str]:
    """Describes a bad line: the column, the found value, and the expected value."""
    label, *tokens = line.split(b"#")[0].decode("ascii", "backslashreplace").split() or [""]
    if not re.fullmatch(NUMBER, label):
        return LABEL, label, "a number: a line begins with its label"
    form = "field:index:value, such as 3:17:0.5" if pattern == OF_FIELD else "index:value, such as 17:0.5"
    wrong = [t for n, t in enumerate(tokens) if not re.fullmatch(pattern if n else f"{pattern}|{QUERY_TOKEN}", t)]
    return FEATURES, wrong[0] if wrong else line[:200].decode("ascii", "backslashreplace"), form
