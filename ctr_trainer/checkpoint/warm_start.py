"""Warm start: a new training starts from the rows and dense variables of another model."""

import contextlib
import logging
import os
import sys
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1
import tqdm

from ctr_trainer.checkpoint import checkpoint as checkpoints
from ctr_trainer.checkpoint.checkpoint import Checkpoint
from ctr_trainer.embedding.snapshot import parquet_rows, snapshot, snapshot_writer
from ctr_trainer.embedding.store.store import Store
from ctr_trainer.embedding.table.row_space import InitialRows
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.ranks import distributed
from ctr_trainer.system.files.paths import is_local, path_of
from ctr_trainer.system.messages.errors import UserError

_log = logging.getLogger(__name__)
_DRAFT = "warm_start"  # In the model directory, which a service can read: the rows in this training's layout.
_NAMED = 5
Block = tuple[np.ndarray, np.ndarray]  # Keys int64[n], rows float32[n, width].


def _layout(config: TableConfig) -> Callable[[np.ndarray, np.ndarray], Block]:
    """Returns f(keys, rows) -> `Block` in a table's layout. Weights without optimizer state get the initial state."""
    initial = InitialRows(config)

    def lay_out(keys: np.ndarray, rows: np.ndarray) -> Block:
        keys = np.require(keys, requirements=("C", "A"))
        if rows.shape[1] < config.width:
            weights, rows = rows, initial.of(keys)
            rows[:, : weights.shape[1]] = weights
        return keys, np.ascontiguousarray(rows, np.float32)

    return lay_out


class WarmStartSettings(NamedTuple):
    """Selects the dense variables of a TensorFlow checkpoint with which a new training starts.

    The fields are the arguments of `tf.compat.v1.train.warm_start`. Embedding rows start with their initial values.
    """

    ckpt_to_initialize_from: str
    vars_to_warm_start: Any = ".*"
    var_name_to_vocab_info: Mapping[str, Any] | None = None
    var_name_to_prev_var_name: Mapping[str, str] | None = None


def warm_start_of(source: "str | WarmStartSettings | None", checkpoint: Checkpoint | None) -> "NoWarmStart":
    """Returns the `WarmStart` of a training on rank 0; `NoWarmStart` on other ranks, which get rank 0's values.

    If the training resumes from a checkpoint, `source` is not read.

    Raises:
      UserError: `source` has nothing to start from, or one of its files is damaged.
    """
    if not source or not distributed.is_chief():
        return NoWarmStart()
    if checkpoint:
        _log.info("warm_start=%s is not read again: the training resumes from %s", source, checkpoint.path)
        return NoWarmStart()
    if isinstance(source, WarmStartSettings):
        return TensorFlowWarmStart(source)
    if _is_of_tensorflow(source):
        return TensorFlowWarmStart(WarmStartSettings(source))
    found = _checkpoint(source)
    return CheckpointWarmStart(found) if found else WarmStart(source)


def _is_of_tensorflow(source: str) -> bool:
    """Returns whether a path is a checkpoint of TensorFlow's Saver or a directory of such, but no model directory."""
    if not is_local(source) or checkpoints.directories(source) or (path_of(source) / checkpoints.MANIFEST).exists():
        return False
    return os.path.exists(f"{source}.index") or tf.train.latest_checkpoint(source) is not None


def _checkpoint(source: str) -> Checkpoint | None:
    """Returns the `Checkpoint` of a model directory or of a checkpoint's directory; None for Parquet files."""
    if (path_of(source) / checkpoints.MANIFEST).exists():
        return checkpoints.load_whole(str(path_of(source)))
    if newest := checkpoints.newest_whole(source):
        return newest
    if not parquet_rows.has_files(source):
        raise UserError(
            f"warm_start={source}: nothing to start from: expected a model directory with a checkpoint, a checkpoint's "
            "directory, or a directory with TABLE.parquet for each table, whose columns are key and row"
        )
    return None


class NoWarmStart:
    """Starts a training with initial values."""

    def variables(self, negative_sampling: float | None = None) -> AbstractContextManager[None]:
        """Returns a context manager that sets how the graph initializes its variables. Create the session within it."""
        return contextlib.nullcontext()

    def rows(self, store: Store, configs: Sequence[TableConfig], model_dir: str) -> None:
        """Writes the rows of the start to a store whose tables exist and are empty."""

    def results(self) -> dict[str, Any]:
        """Returns fields of `TrainResult`."""
        return {}


class TensorFlowWarmStart(NoWarmStart):
    """Starts a training with dense variables from a checkpoint that TensorFlow's Saver wrote."""

    def __init__(self, settings: WarmStartSettings) -> None:
        self._settings = settings

    @contextlib.contextmanager
    def variables(self, negative_sampling: float | None = None) -> Iterator[None]:
        tf1.train.warm_start(*self._settings)
        yield

    def results(self) -> dict[str, Any]:
        return {"warm_start": {"source": self._settings.ckpt_to_initialize_from}}


class WarmStart(NoWarmStart):
    """Starts a training with the rows in a directory of Parquet files.

    The global step, and with it the learning-rate schedule, starts at 0.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._results: dict[str, Any] = {
            "source": source,
            "rows": {},
            "tables_left": [],
            "variables": [],
            "variables_left": [],
        }

    def rows(self, store: Store, configs: Sequence[TableConfig], model_dir: str) -> None:
        found = {config.name: self.blocks(config) for config in configs}
        self._log_differences(found)
        path, identity, entries = path_of(model_dir) / _DRAFT, uuid.uuid4().hex, []
        checkpoints.begin(path)
        try:
            for config in configs:
                blocks, title = found[config.name], f"warm start of {config.name}"
                if blocks is None:
                    continue
                with tqdm.tqdm(blocks, title, unit=" blocks", disable=not sys.stderr.isatty()) as shown:
                    entries.append(snapshot_writer.write_blocks(path, config, shown, identity))
                rows = self._results["rows"][config.name] = entries[-1]["rows"]
                _log.info("warm start: %d rows of table %s from %s", rows, config.name, self._source)
            if entries:
                store.restore(str(path), entries)
        finally:
            path.remove_all()

    def _log_differences(self, found: Mapping[str, Iterator[Block] | None]) -> None:
        lacking = sorted(name for name, blocks in found.items() if blocks is None)
        left = self._results["tables_left"] = self._others(found.keys())
        if lacking and left:
            raise UserError(
                f"warm_start: {self._source} has no rows of table {', '.join(lacking)}, and this model has no table "
                f"for its {', '.join(left)}: give the embedding_dim, or the dims of the feature spec, that the rows "
                "were trained with"
            )
        if lacking:
            names = ", ".join(lacking)
            _log.info("warm start: %s has no rows of table %s: it starts with initial values", self._source, names)
        if left:
            _log.info("warm start: %s, which this model does not have", _left(left, "not taken are the tables"))

    def results(self) -> dict[str, Any]:
        return {"warm_start": self._results}

    def blocks(self, config: TableConfig) -> Iterator[Block] | None:
        """Returns the rows of a table in the layout of `config`; None if the source has no such table.

        Raises:
          UserError: the rows do not have the dims of `config`.
        """
        files = parquet_rows.files_of(self._source, config.name)
        lay_out = _layout(config)
        return (lay_out(*block) for block in parquet_rows.blocks(files, config)) if files else None

    def _others(self, names: Collection[str]) -> list[str]:
        """Returns the sorted names of the tables or files that belong to none of the named tables."""
        taken = {str(file) for name in names for file in parquet_rows.files_of(self._source, name)}
        root = path_of(self._source)
        return sorted(name for name in root.files() if name.endswith(".parquet") and str(root / name) not in taken)


class CheckpointWarmStart(WarmStart):
    """Starts a training with the rows of a `Checkpoint`, and its dense variables of the same names, shapes and types.

    The optimizer state of the rows is taken if the table has the same optimizer and the optimizer is not dense. The
    dense variables include the state of their optimizer.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint.path)
        self._checkpoint, self._configs = checkpoint, checkpoint.table_configs()
        self._results["step"] = checkpoint.step

    def blocks(self, config: TableConfig) -> Iterator[Block] | None:
        there = self._configs.get(config.name)
        if there is None:
            return None
        if there.dims != config.dims:
            raise UserError(
                f"warm_start: table {config.name} has dims {list(config.dims)} here, and {list(there.dims)} in "
                f"{self._source}: give the embedding_dim and the model that it was trained with"
            )
        files = [entry for entry in self._checkpoint.tables if entry["table"] == config.name]
        # The state of another optimizer cannot be used, nor can a state that counts the steps of another training.
        is_kept = there.optimizer.name == config.optimizer.name and not config.optimizer.moves_all_rows
        columns = None if is_kept else there.weights
        lay_out = _layout(config)
        return (lay_out(keys, rows[:, :columns]) for _, keys, rows in snapshot.merged(self._source, files))

    def _others(self, names: Collection[str]) -> list[str]:
        return sorted(self._configs.keys() - set(names))

    @contextlib.contextmanager
    def variables(self, negative_sampling: float | None = None) -> Iterator[None]:
        with self._checkpoint.with_local_dense() as found:
            there = tf.train.load_checkpoint(found.dense_prefix)
            shapes, types = there.get_variable_to_shape_map(), there.get_variable_to_dtype_map()
            own = {v.op.name: v for v in tf1.global_variables() if v is not tf1.train.get_global_step()}
            fits = {name: (shapes.get(name), types.get(name)) == (v.shape, v.dtype) for name, v in own.items()}
            taken = {name: v for name, v in own.items() if fits[name]}
            tf1.train.init_from_checkpoint(found.dense_prefix, taken)
            left = [name for name in own if name not in taken]
            self._results |= {"variables": sorted(taken), "variables_left": sorted(left)}
            _log.info(
                "warm start: %d dense variables of %s; %s", len(taken), self._source, _left(left, "initial values have")
            )
            self._warn_of_other_share(found.negative_sampling, negative_sampling)
            yield

    def _warn_of_other_share(self, there: float | None, own: float | None) -> None:
        if None not in (there, own) and there != own:
            _log.warning(
                "warm start: %s was trained with negative_sampling=%g, and this training has %g: its first "
                "predictions are calibrated for the other share",
                self._source,
                there,
                own,
            )


def _left(names: Collection[str], what: str) -> str:
    if not names:
        return "none was left"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{what} {', '.join(sorted(names)[:_NAMED])}{more}"
