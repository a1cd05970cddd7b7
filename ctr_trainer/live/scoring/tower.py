"""A dense tower, which is an exported graph with a session, and the gate between batches and changes of the record."""

import contextlib
import dataclasses
import os
import pathlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from ctr_trainer.embedding.index.key_kernels import DistinctKeys
from ctr_trainer.embedding.worker.lookup import Bag, Lookup
from ctr_trainer.export.ranking import CANDIDATES, COLUMNS, CONTEXT, RANKING, RANKING_KEYS
from ctr_trainer.export.raw_inputs import RawInputs
from ctr_trainer.export.raw_keys import KEYS, SIGNATURE, SPLITS, VALUES, WEIGHTS, flat_order
from ctr_trainer.export.saved_model import load_figure, load_spec
from ctr_trainer.features.columns import FORM, NEW_KEYS, TYPICAL, SparseFeature
from ctr_trainer.features.host_function import calling_thread_config, prepared_call
from ctr_trainer.features.spec import FeatureSpec, TableFeatures
from ctr_trainer.features.tensors import EMBEDDING, LINEAR, MASK, SEQUENCE
from ctr_trainer.system.messages.errors import UserError, reason

_SECONDS = 60
tf1 = tf.compat.v1
_SERVING = tf1.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY
_GRAPH = tf.saved_model.SAVED_MODEL_FILENAME_PB
_ROWS = (EMBEDDING, LINEAR, SEQUENCE, MASK)
Arrays = Mapping[str, np.ndarray]
Read = Callable[[str, np.ndarray], tuple[np.ndarray, np.ndarray]]  # See `RowReader.read`.
Add = Callable[[list[str], np.ndarray], object]  # See `NewKeys.add`.


class RecordGate:
    """Admits either any number of batches or one change of the record. A waiting change blocks new batches."""

    def __init__(self) -> None:
        self._door, self._idle = threading.Lock(), threading.Condition()  # A change holds the door.
        self._batches = 0

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        with self._door, self._idle:
            self._batches += 1
        try:
            yield
        finally:
            with self._idle:
                self._batches -= 1
                self._idle.notify_all()

    @contextlib.contextmanager
    def change(self) -> Iterator[None]:
        """Waits until all batches have ended."""
        with self._door:
            with self._idle:
                if not self._idle.wait_for(lambda: not self._batches, _SECONDS):
                    raise TimeoutError(f"the running batches did not end within {_SECONDS} s")
            yield


def look_up(
    spec: FeatureSpec, names: Collection[str], keys: Arrays, count: int, context: Collection[str], read: Read, add: Add
) -> tuple[dict[str, np.ndarray], int]:
    """Makes those inputs of a signature that contain rows. Reads each distinct key of a table once.

    Args:
      names: names of the inputs of `serving_default`, see `export.receivers.RowInputs`.
      keys: the outputs of the signature `keys`, or of `ranking_keys` with a context; see `raw_keys.key_outputs`.
      context: names of the columns that all examples share. If there are any, the inputs are those of the signature
        `ranking`, see `export.ranking.RankedRows`.

    Returns:
      (dict of name -> array, number of distinct keys that were read).
    """
    inputs: dict[str, np.ndarray] = {}
    distinct_keys = 0
    # The names of the features whose columns all belong to the context.
    shared = {name for name, columns in spec.sources.items() if {*columns} <= {*context}}
    for table in spec.tables:
        kinds = [kind for kind in (EMBEDDING, LINEAR) if f"{kind}/{table.name}" in names]
        sequences = tuple(f for f in table.sequences if f"{SEQUENCE}/{f.name}" in names)
        for f in table.sequences:
            if f"{MASK}/{f.name}" in names:
                mask = np.arange(f.max_length) < np.diff(keys[f"{SPLITS}/{f.name}"])[:, None]
                inputs[f"{MASK}/{f.name}"] = mask.astype(np.float32)
        if not kinds and not sequences:
            continue
        if not kinds:
            table = dataclasses.replace(table, single=(), bags=())
        table = dataclasses.replace(table, sequences=sequences)
        sides: dict[str, tuple[TableFeatures, Lookup]] = {}  # By the prefix of the input names.
        if context:
            for side, size in ((CONTEXT, 1), (CANDIDATES, count)):
                parts = (table.single, table.bags, table.sequences)
                single, bags, lists = (
                    tuple(f for f in part if (f.name in shared) == (side == CONTEXT)) for part in parts
                )
                own = dataclasses.replace(table, single=single, bags=bags, sequences=lists)
                sides[f"{side}/"] = own, _lookup(own, keys, _singles(table, own, keys, count, shared, size))
            places = {f.name: place for place, f in enumerate(table.pooled)}
            columns = [places[f.name] for own, _ in sides.values() for f in own.pooled]
            inputs[f"{COLUMNS}/{table.name}"] = np.array(columns, np.int32)
        else:
            singles = keys[f"{KEYS}/{table.name}"] if table.single else np.zeros((count, 0), np.int64)
            sides[""] = table, _lookup(table, keys, singles)
        rows, read_keys = _read(table.name, [lookup for _, lookup in sides.values()], read)
        distinct_keys += read_keys
        for (prefix, (own, lookup)), (its_rows, found) in zip(sides.items(), rows, strict=True):
            add([f.name for f in (*own.pooled, *own.sequences)], lookup.count(~found))
            # A row is [embedding, linear weight], or only one of the two if the model has no other.
            starts = {EMBEDDING: (0, table.dim), LINEAR: (its_rows.shape[1] - 1, 1)}
            for kind in kinds:
                inputs[f"{prefix}{kind}/{table.name}"] = lookup.gather(its_rows, *starts[kind])
            for number, f in enumerate(own.sequences):
                inputs[f"{SEQUENCE}/{f.name}"] = lookup.gather_sequence(number, its_rows, *starts[EMBEDDING])
    return inputs, distinct_keys


def _lookup(table: TableFeatures, keys: Arrays, singles: np.ndarray) -> Lookup:
    bags: list[Bag] = []
    for f in table.bags:
        assert f.combiner is not None  # Bags have a combiner.
        bags.append((*_list(keys, f), f.combiner, keys.get(f"{WEIGHTS}/{f.name}")))
    return Lookup(singles, bags, [(*_list(keys, f), f.max_length) for f in table.sequences])


def _list(keys: Arrays, feature: SparseFeature) -> tuple[np.ndarray, np.ndarray]:
    return keys[f"{VALUES}/{feature.name}"], keys[f"{SPLITS}/{feature.name}"]


def _singles(
    table: TableFeatures, features: TableFeatures, keys: Arrays, count: int, shared: Collection[str], size: int
) -> np.ndarray:
    """Returns int64[size, F], the keys of the single-valued features of one side."""
    found, start = {}, 0
    for f in flat_order(table.single) if features.single else ():
        length = 1 if f.name in shared else count
        found[f.name] = keys[f"{KEYS}/{table.name}"][start : start + length]
        start += length
    columns = [found[f.name] for f in features.single]
    return np.ascontiguousarray(np.stack(columns, 1)) if columns else np.zeros((size, 0), np.int64)


def _read(table: str, lookups: list[Lookup], read: Read) -> tuple[list[tuple[np.ndarray, np.ndarray]], int]:
    """Returns what `read` returns for each lookup, and the number of distinct keys. Reads each once."""
    if len(lookups) == 1:
        unique = lookups[0].unique
        return [read(table, unique)], len(unique)
    distinct = DistinctKeys(sum(len(lookup.unique) for lookup in lookups))
    numbers = [distinct.numbers(lookup.unique) for lookup in lookups]
    rows, found = read(table, distinct.keys)
    return [(rows[each], found[each]) for each in numbers], len(distinct.keys)


class TowerUnread(UserError):
    """The files of a tower cannot be read, or TensorFlow cannot load them, which may be temporary."""


class Tower:
    """The dense tower of a SavedModel that was exported without rows. Several threads may compute with it concurrently.

    Args:
      earlier: a tower that was loaded before, or None. If it has the same graph, only the variables are read.
      spare: a tower that is no longer used, or None. If it has the same graph, the new tower takes over its session,
        so that TensorFlow does not plan the graph again. Otherwise, the spare tower is closed.

    Attributes:
      inputs: the columns that the signatures take.
      rows: names of the inputs that contain rows, see `export.receivers.RowInputs`.
      outputs: names of the predictions.
      ranks: whether the export has the signatures for ranking, which a `model_fn` of one's own may not support.
      is_planned: whether TensorFlow has planned the signatures, because an earlier tower has used the session.
      forms, new_keys: the form of the texts, and the share of new keys in training, by feature.
      typical: the most frequent texts by feature, as far as they can be shown.

    Raises:
      TowerUnread: the SavedModel cannot be read now.
      UserError: it cannot be served.
    """

    def __init__(self, path: str, earlier: "Tower | None" = None, spare: "Tower | None" = None) -> None:
        self._session: Any = None
        try:
            self._load(path, earlier, spare)
        except BaseException as error:
            for tower in filter(None, (self, spare)):
                tower.close()
            if isinstance(error, OSError | tf.errors.OpError):
                raise TowerUnread(
                    f"{path} is not a SavedModel that can be served: {reason(error)}; publish it again"
                ) from None
            raise

    def _load(self, path: str, earlier: "Tower | None", spare: "Tower | None") -> None:
        self._definition = pathlib.Path(path, _GRAPH).read_bytes()
        self.spec = load_spec(path)
        # The graph does not determine how bags are pooled, so the specs are compared, too.
        if earlier and (earlier._definition, earlier.spec) != (self._definition, self.spec):
            earlier = None
        if spare is not None and (earlier is None or not spare.shares_graph(earlier)):
            spare.close()
            spare = None
        graph = earlier._session.graph if earlier else tf.Graph()
        self._session = spare._session if spare else tf1.Session(graph=graph, config=calling_thread_config())
        self._meta: Any
        if earlier:
            self._meta = earlier._meta
            saver = self._meta.saver_def
            prefix = os.path.join(path, tf.saved_model.VARIABLES_DIRECTORY, tf.saved_model.VARIABLES_FILENAME)
            self._session.run(saver.restore_op_name, {saver.filename_tensor_name: prefix})
        else:
            self._meta = tf1.saved_model.load(self._session, [tf.saved_model.SERVING], str(path))
        self.is_planned = spare is not None
        signatures = self._meta.signature_def
        self._tower = signatures[_SERVING]
        self._keys = signatures[SIGNATURE] if SIGNATURE in signatures else None
        self.rows = tuple(name for name in self._tower.inputs if name.partition("/")[0] in _ROWS and "/" in name)
        dense = [name for name in self._tower.inputs if name not in self.rows]
        names = {*dense, *(self._keys.inputs if self._keys else ())}
        self.inputs = RawInputs.of(self.spec, names)
        if others := sorted(names - {column.name for column in self.inputs.columns}):
            raise UserError(f"{path}: its input {others[0]!r} is not a column of its feature spec: publish it again")
        self.outputs = tuple(sorted(self._tower.outputs))
        self._dense = dense
        self.typical, self.forms, self.new_keys = (load_figure(path, figure) for figure in (TYPICAL, FORM, NEW_KEYS))
        own = (SIGNATURE, _SERVING, RANKING, RANKING_KEYS)
        self._run: dict[str, Callable[[Arrays], dict[str, np.ndarray]]] = (
            spare._run if spare else {name: self._callable(signatures[name]) for name in own if name in signatures}
        )
        self.ranks = RANKING in self._run

    def keys(self, arrays: Arrays, is_ranked: bool = False) -> dict[str, np.ndarray]:
        """Returns the keys of the values that `Examples.arrays` returned; see `raw_keys.key_outputs`."""
        if self._keys is None:
            return {}
        return self._run[RANKING_KEYS if is_ranked else SIGNATURE](arrays)

    def predict(self, arrays: Arrays, rows: Arrays, is_ranked: bool = False) -> dict[str, np.ndarray]:
        """Returns array[B, ...] by output, the predictions for the results of `Examples.arrays` and `look_up`."""
        given = {**rows, **{name: arrays[name] for name in self._dense}}
        return self._run[RANKING if is_ranked else _SERVING](given)

    def shares_graph(self, other: "Tower") -> bool:
        """Returns whether the two towers use the same graph object."""
        return self._session.graph is other._session.graph

    def close(self) -> None:
        if self._session is not None:
            self._session.close()

    def _callable(self, signature: Any) -> Callable[[Arrays], dict[str, np.ndarray]]:
        inputs, outputs = signature.inputs, signature.outputs
        feed, fetch = ([tensor.name for tensor in each.values()] for each in (inputs, outputs))
        run = prepared_call(self._session, feed, fetch)
        kinds = {name: tf.as_dtype(tensor.dtype).as_numpy_dtype for name, tensor in inputs.items()}
        names = tuple(outputs)

        def call(given: Arrays) -> dict[str, np.ndarray]:
            values = (np.asarray(given[name], kind) for name, kind in kinds.items())
            return dict(zip(names, run(*values), strict=True))

        return call
