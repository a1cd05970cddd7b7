"""The `libsvm` and `libffm` formats. Each line is an example: a label, then weighted indices, separated by blanks.

libsvm, libfm, liblinear, SVMlight:  label [qid:number] index:value index:value ... [# comment]
libffm:                              label field:index:value field:index:value ...
"""

import re
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.data import typed
from ctr_trainer.data.blocks import BadRowSink, Chunk
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
    files: Iterable[SourceFile], spec: FeatureSpec, bad_rows: BadRowSink, time: str | None = None
) -> Iterator[Chunk]:
    """Yields Chunks with `label`, `features` (list of `index:value`) and `qid`. A `blocks.SourceReader`.

    If the spec is unlabelled, lines may lack the label.
    """
    yield from _read(files, spec, bad_rows, time, WEIGHTED)


def read_fields(
    files: Iterable[SourceFile], spec: FeatureSpec, bad_rows: BadRowSink, time: str | None = None
) -> Iterator[Chunk]:
    """Yields Chunks with `label` and a column such as `field3` for each field that the spec needs; see `read`.

    A field's column contains lists of `index:value`, or of `index` if the feature has no weights.
    """
    yield from _read(files, spec, bad_rows, time, OF_FIELD)


def tables(files: Iterable[SourceFile], format: str, bad_rows: BadRowSink) -> Iterator[pa.Table]:
    """Yields tables of files of `libsvm` or `libffm`: the label, and lists of `index:value` per field, or of all."""
    for file in files:
        for lines, _ in good_lines(file.path, OF_FIELD if format == "libffm" else WEIGHTED, bad_rows):
            tokens, owner = tokens_of(lines)
            first = np.searchsorted(owner, np.arange(len(lines)))  # The first token of each line is its label.
            weighted = pc.match_substring(tokens, ":").to_numpy(zero_copy_only=False)
            weighted &= ~pc.starts_with(tokens, "qid:").to_numpy(zero_copy_only=False)
            columns = {LABEL: tokens.take(pa.array(first))}
            tokens, owner = tokens.filter(pa.array(weighted)), owner[weighted]
            if format == "libsvm":
                yield pa.table(columns | {FEATURES: _lists(tokens, owner, len(lines))})
                continue
            fields = pc.list_element(pc.split_pattern(tokens, ":", max_splits=1), 0).unique().to_pylist()
            names = [f"{FIELD}{field}" for field in sorted(fields, key=int)]
            yield pa.table(columns | _field_columns(tokens, owner, len(lines), names, set(names)))


def tokens_of(lines: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Splits good lines, as bytes, into tokens. Returns (tokens as strings; int[n], the line of each token)."""
    texts = pc.replace_substring_regex(lines, r"#.*$", "").cast(pa.string())
    lists = pc.ascii_split_whitespace(pc.ascii_trim_whitespace(texts))
    return lists.flatten(), pc.list_parent_indices(lists).to_numpy()


def good_lines(
    file: str, pattern: str, bad_rows: BadRowSink, labelled: bool = True
) -> Iterator[tuple[pa.Array, np.ndarray]]:
    """Yields blocks of a file's good lines: (lines as an Array of bytes; int64[n], their numbers, from 1).

    Args:
      pattern: regular expression of a token after the label.
      labelled: whether a line must have a label.
    """
    label = rf"(?:{NUMBER}(?:\s|$))" + ("" if labelled else "?")
    whole = rf"^\s*{label}\s*(?:{QUERY_TOKEN}(?:\s+|$))?(?:{pattern}(?:\s+|$))*(?:#.*)?$"
    first = 1
    for text in text_blocks(file):
        block = text.split(b"\n")[:-1]
        lines, numbers = pa.array(block, pa.binary()), np.arange(first, first + len(block))
        first += len(block)
        filled = ~pc.match_substring_regex(lines, r"^\s*(?:#.*)?$").to_numpy(zero_copy_only=False)
        good = pc.match_substring_regex(lines, whole).to_numpy(zero_copy_only=False)
        for at in np.flatnonzero(filled & ~good):
            bad_rows.add(file, int(numbers[at]), *_fault(block[at], pattern))
        kept = filled & good
        if kept.any():
            yield lines.filter(pa.array(kept)), numbers[kept]


def _read(
    files: Iterable[SourceFile], spec: FeatureSpec, bad_rows: BadRowSink, time: str | None, pattern: str
) -> Iterator[Chunk]:
    wanted = typed.uses(spec, time)
    fields = [name for name in wanted if name.startswith(FIELD)]
    weighted = {f.column for f in spec.sparse if f.weight_separator is not None}
    for file in files:
        for lines, numbers in good_lines(file.path, pattern, bad_rows, spec.labelled):
            tokens, owner = tokens_of(lines)
            is_query = pc.starts_with(tokens, "qid:").to_numpy(zero_copy_only=False)
            is_label = ~is_query & ~pc.match_substring(tokens, ":").to_numpy(zero_copy_only=False)
            rest = ~is_query & ~is_label
            labels, queries = tokens.filter(pa.array(is_label)), tokens.filter(pa.array(is_query))
            found = {
                LABEL: _scattered(labels, owner[is_label], len(lines)),
                QUERY: _scattered(pc.replace_substring(queries, "qid:", ""), owner[is_query], len(lines)),
            }
            tokens, owner = tokens.filter(pa.array(rest)), owner[rest]
            if pattern == OF_FIELD:
                found |= _field_columns(tokens, owner, len(lines), fields, weighted)
            else:
                found[FEATURES] = _lists(tokens, owner, len(lines))
            typed.check(wanted, list(found), file.path, spec)
            table = pa.table({name: found[name] for name in wanted})
            yield typed.as_chunk(table, wanted, file.path, numbers, bad_rows)


def _field_columns(
    tokens: pa.Array, owner: np.ndarray, rows: int, names: list[str], weighted: set[str]
) -> dict[str, pa.Array]:
    parts = pc.split_pattern(tokens, ":", max_splits=1)
    fields, values = pc.list_element(parts, 0), pc.list_element(parts, 1)
    columns = {}
    for name in names:
        of = pc.equal(fields, name.removeprefix(FIELD))
        held = values.filter(of)
        if name not in weighted:
            held = pc.replace_substring_regex(held, ":[^:]*$", "")
        columns[name] = _lists(held, owner[of.to_numpy(zero_copy_only=False)], rows)
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
