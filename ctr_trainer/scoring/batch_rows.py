"""From the keys of a batch to the tower's inputs made of rows, by the lookup that training uses."""

import numpy as np

from ctr_trainer.embedding.worker.lookup import Lookup
from ctr_trainer.export.raw_keys import KEYS, SPLITS, VALUES, WEIGHTS
from ctr_trainer.features.tensors import EMBEDDING, LINEAR, MASK, SEQUENCE


def look_up(spec, names, keys, count, read):
    """Makes the inputs of rows. Each table is read once, and each distinct key of it once.

    Args:
      spec: FeatureSpec.
      names: of the inputs, see `row_inputs.RowInputs` of `export`.
      keys: dict of the outputs of `raw_keys.key_outputs`.
      count: of examples.
      read: f(table, keys int64[U]) -> float32[U, weights].

    Returns:
      (dict of name -> float32 tensor, number of distinct keys that were read).
    """
    inputs, distinct_keys = {}, 0
    for table in spec.tables:
        pooled = [name for name in (f"{EMBEDDING}/{table.name}", f"{LINEAR}/{table.name}") if name in names]
        sequences = [f for f in table.sequences if f"{SEQUENCE}/{f.name}" in names]
        for feature in table.sequences:
            if f"{MASK}/{feature.name}" in names:
                lengths = np.diff(keys[f"{SPLITS}/{feature.name}"])
                mask = np.arange(feature.max_length) < lengths[:, None]
                inputs[f"{MASK}/{feature.name}"] = mask.astype(np.float32)
        if not pooled and not sequences:
            continue
        lookup = _lookup(table, bool(pooled), sequences, keys, count)
        rows = read(table.name, lookup.unique)
        distinct_keys += len(lookup.unique)
        # A row is [embedding, linear weight], of which the model has what it reads: see `estimator/table_inputs.py`.
        starts = {EMBEDDING: (0, table.dim), LINEAR: (rows.shape[1] - 1, 1)}
        for name in pooled:
            inputs[name] = lookup.gather(rows, *starts[name.partition("/")[0]])
        for number, feature in enumerate(sequences):
            inputs[f"{SEQUENCE}/{feature.name}"] = lookup.gather_sequence(number, rows, *starts[EMBEDDING])
    return inputs, distinct_keys


def _lookup(table, is_pooled, sequences, keys, count):
    singles = keys[f"{KEYS}/{table.name}"] if is_pooled and table.single else np.zeros((count, 0), np.int64)
    bags = []
    for f in table.bags if is_pooled else ():
        bags.append((*_list(keys, f), f.combiner, keys.get(f"{WEIGHTS}/{f.name}")))
    return Lookup(singles, bags, [(*_list(keys, f), f.max_length) for f in sequences])


def _list(keys, feature):
    return keys[f"{VALUES}/{feature.name}"], keys[f"{SPLITS}/{feature.name}"]
