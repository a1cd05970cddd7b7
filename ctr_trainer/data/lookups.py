"""The values of `[[lookup]]`, read from their files, and joined to the rows of source data by their keys."""

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from ctr_trainer.data import encoders, typed
from ctr_trainer.data.blocks import BadRow
from ctr_trainer.features.hashing import keys
from ctr_trainer.features.lookup import LookupColumns, Pretrained, check_size
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.files.local_path import PARQUET
from ctr_trainer.system.messages.errors import UserError, cut, listed, reason

_MAGIC = b"PAR1"
SLOT = "lookup"  # Hashed with the key's text, as the slot of a feature is.


class Values(NamedTuple):
    """The values of a lookup, by key.

    Attributes:
      keys: int64[n], the sorted hashes of the keys.
      values: float32[n, columns], NaN for a missing number; or n texts, binary, null for a missing one.
    """

    keys: np.ndarray
    values: np.ndarray | pa.Array


def joined(table: pa.Table, spec: FeatureSpec) -> pa.Table:
    """Returns raw columns, see `typed`, with those that features read by lookup. A key without a value gets null."""
    for lookup, is_number in spec.lookups_read.items():
        found = values_of(lookup, is_number)
        wanted = keys(SLOT, table[lookup.key])
        at = np.minimum(np.searchsorted(found.keys, wanted), len(found.keys) - 1)
        is_known = found.keys[at] == wanted
        table = table.drop_columns([name for name in lookup.columns if name in table.column_names])
        if not isinstance(found.values, np.ndarray):
            texts = found.values.take(pa.array(at, mask=~is_known))
            is_null = pc.is_in(texts, pa.array([each.encode() for each in spec.csv.null_values], pa.binary()))
            table = table.append_column(lookup.name, pc.if_else(is_null, pa.scalar(None, pa.binary()), texts))
            continue
        numbers = np.where(is_known[:, None], found.values[at], np.float32("nan"))
        for place, name in enumerate(lookup.columns):
            table = table.append_column(name, pa.array(numbers[:, place].copy()))
    return table


@functools.lru_cache(maxsize=64)
def values_of(lookup: LookupColumns, is_number: bool, slot: str = SLOT) -> Values:
    """Reads the values of a lookup from its file, once per process. The keys are hashed with `slot`.

    Raises:
      UserError: the file is not the one of the spec, is damaged, lacks a column, or has no rows; or a row has no key, a
        key of an earlier row, or a value that is no number or no list of the right length.
    """
    table, bad = _read(lookup), list[BadRow]()
    key_use = typed.Use(f"{lookup.section} {lookup.name!r}", number=False, several=False, keys_only=False)
    uses = {} if lookup.length else {lookup.value: dataclasses.replace(key_use, number=is_number)}
    uses[lookup.file_key] = key_use
    numbers = np.arange(1, len(table) + 1)
    plain = typed.as_chunk(table.select([*uses]), uses, lookup.file, numbers, bad).table
    for each in bad:
        raise _refused_row(lookup, each.line or 0, each.column, each.value, f"is not {each.expected}")
    hashed = keys(slot, plain[lookup.file_key])
    order = np.argsort(hashed, kind="stable")
    empty, again = hashed == keys(slot, pa.array([""])), np.flatnonzero(np.diff(hashed[order]) == 0)
    if len(again) or empty.any():
        at = int(order[again[0] + 1]) if len(again) else int(empty.argmax())
        why = f"is in row {order[again[0]] + 1}, too; keep one" if len(again) else "is not a key"
        raise _refused_row(lookup, at + 1, lookup.file_key, table[lookup.file_key][at], why)
    if not is_number:
        texts = typed.bytes_of(plain[lookup.value].combine_chunks())
        return Values(hashed[order], texts.take(pa.array(order)))
    values, wrong = _vectors(lookup, table) if lookup.length else _numbers(plain[lookup.value].combine_chunks())
    if wrong.any():
        what = f"a list of {lookup.length} finite numbers" if lookup.length else "a finite number"
        at = int(wrong.argmax())
        raise _refused_row(lookup, at + 1, lookup.value, table[lookup.value][at], f"is not {what}")
    return Values(hashed[order], values[order])


def pretrained_of(spec: FeatureSpec) -> dict[str, list[tuple[Pretrained, np.ndarray, np.ndarray]]]:
    """Returns the sorted keys and the vectors of each `Pretrained`, by table."""
    found: dict[str, list[tuple[Pretrained, np.ndarray, np.ndarray]]] = {}
    for each in spec.pretrained:
        feature = next(f for f in spec.sparse if f.name == each.name)
        vectors = values_of(dataclasses.replace(each, length=feature.dim), True, feature.slot)
        found.setdefault(f"dim{feature.dim}", []).append((each, *vectors))
    return found


def _read(lookup: LookupColumns) -> pa.Table:
    """Returns the columns of the key and of the value."""
    data, wanted = lookup.read(), [*dict.fromkeys((lookup.file_key, lookup.value))]
    try:
        if data.startswith(_MAGIC):
            file = pq.ParquetFile(pa.BufferReader(data), **PARQUET)
            names = file.schema_arrow.names
            table = file.read([name for name in wanted if name in names], use_threads=False)
        else:
            types = pa.csv.ConvertOptions(
                column_types=dict.fromkeys(wanted, pa.string()), strings_can_be_null=True, null_values=[""]
            )
            table = pa.csv.read_csv(pa.BufferReader(data), convert_options=types)
            names = table.column_names
    except (pa.ArrowException, OSError) as error:
        raise lookup.refused(
            f"{reason(error)}; expected Parquet, or comma-separated UTF-8 text whose first line names the columns"
        ) from error
    for name in wanted:
        if names.count(name) != 1:
            raise lookup.refused(f"{names.count(name) or 'no'} column {name!r}; the columns are {listed(names)}")
    if not len(table):
        raise lookup.refused("it has no rows")
    check_size(lookup.file, table.nbytes)
    return table.select(wanted)


def _numbers(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Returns (float32[n, 1], NaN for a missing number; mask of the rows with other values)."""
    numbers, wrong = encoders.numbers(column, pa.float32())
    return numbers.to_numpy(zero_copy_only=False)[:, None], np.zeros(len(column), bool) if wrong is None else wrong


def _vectors(lookup: LookupColumns, table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Returns (float32[n, length]; mask of the rows without such a list of numbers)."""
    column = table[lookup.value].combine_chunks()
    good, vectors = np.zeros(len(column), bool), np.full((len(column), lookup.length), np.nan, np.float32)
    if typed.is_list(column.type) and typed.is_number(column.type.value_type):
        good = pc.equal(pc.list_value_length(column), lookup.length).fill_null(False).to_numpy(zero_copy_only=False)
        flat = pc.list_flatten(column.filter(pa.array(good))).to_numpy(zero_copy_only=False)
        vectors[good] = flat.reshape(-1, lookup.length)
    return vectors, ~(good & np.isfinite(vectors).all(1))


def _refused_row(lookup: LookupColumns, row: int, column: str | None, value: Any, why: str) -> UserError:
    shown = encoders.shown(value) if isinstance(value, pa.Scalar) else value
    return lookup.refused(f"row {row}, column {column!r}: {cut(repr(shown))} {why}")
