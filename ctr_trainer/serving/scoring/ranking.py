"""The rows of one context and of many candidates, each looked up and pooled once."""

import dataclasses
from collections.abc import Collection

import numpy as np

from ctr_trainer.embedding.index.key_kernels import DistinctKeys
from ctr_trainer.embedding.worker.lookup import Lookup
from ctr_trainer.features.spec import FeatureSpec, TableFeatures
from ctr_trainer.features.tensors import EMBEDDING, LINEAR, MASK, SEQUENCE
from ctr_trainer.serving.export.ranking import CANDIDATES, COLUMNS, CONTEXT
from ctr_trainer.serving.export.raw_keys import KEYS, SPLITS, flat_order
from ctr_trainer.serving.scoring.tower import Arrays, Read, lookup_of


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
