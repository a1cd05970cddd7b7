"""A dense tower that is ready to compute: an exported graph, and a session with its variables."""

import os
import pathlib

import numpy as np
import tensorflow as tf

from ctr_trainer.embedding.worker.lookup import Lookup
from ctr_trainer.export.raw_keys import KEYS, SIGNATURE, SPLITS, VALUES, WEIGHTS
from ctr_trainer.export.saved_model import load_spec, load_typical
from ctr_trainer.features.tensors import EMBEDDING, LINEAR, MASK, SEQUENCE
from ctr_trainer.messages.errors import UserError, reason
from ctr_trainer.scoring.raw_inputs import RawInputs

tf1 = tf.compat.v1
_SERVING = tf1.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY
_GRAPH = tf.saved_model.SAVED_MODEL_FILENAME_PB
_ROWS = (EMBEDDING, LINEAR, SEQUENCE, MASK)


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


class Tower:
    """The dense tower of one SavedModel of `export --export_rows=none`. Several threads may compute.

    Args:
      path: local directory of the SavedModel.
      earlier: a Tower that was loaded before, or None. If it has the same graph, only the variables are read, which
        takes milliseconds.

    Attributes:
      inputs: `RawInputs` that the signatures take.
      spec: FeatureSpec.
      rows: names of the inputs made of rows, see `row_inputs.RowInputs`.
      outputs: names of the predictions.
      typical: dict of the name of a number with buckets -> the middle one of the boundaries of its buckets, which with
        `quantiles` is the median of the training data; and of a feature of text -> its most frequent text there.

    Raises:
      UserError: there is no such SavedModel.
    """

    def __init__(self, path, earlier=None):
        try:
            self._definition = pathlib.Path(path, _GRAPH).read_bytes()
            self.spec = load_spec(path)
            # The graph alone does not say how bags are pooled.
            same = earlier is not None and (earlier._definition, earlier.spec) == (self._definition, self.spec)
            graph = earlier._session.graph if same else tf.Graph()
            self._session = tf1.Session(graph=graph, config=_config())
            if same:
                self._meta = earlier._meta
                saver = self._meta.saver_def
                prefix = os.path.join(path, tf.saved_model.VARIABLES_DIRECTORY, tf.saved_model.VARIABLES_FILENAME)
                self._session.run(saver.restore_op_name, {saver.filename_tensor_name: prefix})
            else:
                self._meta = tf1.saved_model.load(self._session, [tf.saved_model.SERVING], str(path))
        except (OSError, tf.errors.OpError) as error:
            raise UserError(f"{path}: no SavedModel that can be served: {reason(error)}; publish it again") from None
        signatures = self._meta.signature_def
        self._tower = signatures[_SERVING]
        self._keys = signatures[SIGNATURE] if SIGNATURE in signatures else None
        self.rows = tuple(name for name in self._tower.inputs if name.partition("/")[0] in _ROWS and "/" in name)
        if self.rows and self._keys is None:
            raise UserError(
                f"{path}: it has no signature {SIGNATURE!r}, which an older export lacks: export and publish it again"
            )
        dense = [name for name in self._tower.inputs if name not in self.rows]
        self.inputs = RawInputs.of(self.spec, {*dense, *(self._keys.inputs if self._keys else ())})
        self.outputs = tuple(sorted(self._tower.outputs))
        self._dense = dense
        raw = {**self._tower.inputs, **(self._keys.inputs if self._keys else {})}
        self._middles: dict[str, float] = earlier._middles if same else _middles(graph, raw)
        self.typical: dict[str, float | str] = {**self._middles, **load_typical(path)}
        self._make_keys = self._callable(self._keys) if self._keys else None
        self._predict = self._callable(self._tower)

    def keys(self, arrays):
        """Computes the keys of raw values. -> dict of the outputs of `raw_keys.key_outputs`

        Args:
          arrays: of `Examples.arrays`.
        """
        if self._keys is None:
            return {}
        return dict(
            zip(self._keys.outputs, self._make_keys(*(arrays[name] for name in self._keys.inputs)), strict=True)
        )

    def predict(self, arrays, rows):
        """Computes predictions. -> dict of output -> array[B, ...]

        Args:
          arrays: of `Examples.arrays`.
          rows: dict of name -> float32 tensor, of each of `self.rows`.
        """
        given = {**rows, **{name: arrays[name] for name in self._dense}}
        return dict(zip(self._tower.outputs, self._predict(*(given[name] for name in self._tower.inputs)), strict=True))

    def close(self):
        """Frees the variables."""
        self._session.close()

    def _callable(self, signature):
        graph = self._session.graph
        fetches = [graph.get_tensor_by_name(tensor.name) for tensor in signature.outputs.values()]
        feeds = [graph.get_tensor_by_name(tensor.name) for tensor in signature.inputs.values()]
        return self._session.make_callable(fetches, feeds)


def _middles(graph: tf.Graph, inputs: dict) -> dict[str, float]:
    """Returns the middle boundary of each input that a graph puts into buckets."""
    names, found = {tensor.name: name for name, tensor in inputs.items()}, {}
    for operation in graph.get_operations():
        if operation.type == "Bucketize":
            value = operation.inputs[0]
            while value.name not in names and len(value.op.inputs):
                value = value.op.inputs[0]
            boundaries = operation.get_attr("boundaries")
            if value.name in names and boundaries:
                found[names[value.name]] = float(boundaries[len(boundaries) // 2])
    return found


def _config():
    # A batch is small. -1 computes it in the thread that asks, so that no core is waited for.
    return tf1.ConfigProto(device_count={"GPU": 0}, intra_op_parallelism_threads=1, inter_op_parallelism_threads=-1)
