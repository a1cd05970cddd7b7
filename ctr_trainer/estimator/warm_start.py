"""What a new training begins with in place of initial values: the rows and dense variables of another model."""

import contextlib
import logging
import os
import sys
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1
import tqdm

from ctr_trainer.embedding.snapshot import parquet_rows, snapshot, snapshot_writer
from ctr_trainer.embedding.table.row_space import InitialRows
from ctr_trainer.estimator import checkpoint as checkpoints
from ctr_trainer.files.paths import is_local, path_of
from ctr_trainer.graph_notes.notes import notes
from ctr_trainer.messages.errors import UserError
from ctr_trainer.ranks import distributed

_log = logging.getLogger(__name__)
_DRAFT = "warm_start"  # Below the model directory, where a service reads: the rows as this training lays them out.
_NAMED = 5


class CheckpointRows:
    """The rows of a `Checkpoint` that was verified."""

    def __init__(self, checkpoint):
        self._checkpoint, self._configs = checkpoint, checkpoint.table_configs()

    def blocks(self, config):
        """Returns an iterable of (keys int64[n], rows float32[n, width]) of a table; None if there is none.

        Raises:
          UserError: its rows have other widths.
        """
        there = self._configs.get(config.name)
        if there is None:
            return None
        if there.dims != config.dims:
            raise UserError(
                f"--warm_start: table {config.name} has dims {list(config.dims)} here, and {list(there.dims)} in "
                f"{self._checkpoint.path}: give the --embedding_dim and the --model that it was trained with"
            )
        files = [entry for entry in self._checkpoint.tables if entry["table"] == config.name]
        same = there.optimizer.name == config.optimizer.name
        as_here = _LaidOut(config)
        return (
            as_here(keys, rows if same else rows[:, : there.weights])
            for _, keys, rows in snapshot.merged(self._checkpoint.path, files)
        )

    def others(self, names):
        """Returns the tables of other names, sorted."""
        return sorted(self._configs.keys() - names)


class ParquetRows:
    """The rows of a directory of Parquet files."""

    def __init__(self, directory):
        self._directory = directory

    def blocks(self, config):
        """As `CheckpointRows.blocks`."""
        files = parquet_rows.files_of(self._directory, config.name)
        as_here = _LaidOut(config)
        return (as_here(*block) for block in parquet_rows.blocks(files, config)) if files else None

    def others(self, names):
        """Returns what files are named by that belong to none of the tables, sorted."""
        taken = {str(file) for name in names for file in parquet_rows.files_of(self._directory, name)}
        root = path_of(self._directory)
        return sorted(name for name in root.files() if name.endswith(".parquet") and str(root / name) not in taken)


class _LaidOut:
    """Gives rows the layout of a table: weights without a state get the state of an initial row."""

    def __init__(self, config):
        self._width, self._initial = config.width, InitialRows(config)

    def __call__(self, keys, rows):
        """Returns (keys int64[n], rows float32[n, width])."""
        keys = np.require(keys, requirements=("C", "A"))
        if rows.shape[1] < self._width:
            weights, rows = rows, self._initial.of(keys)
            rows[:, : weights.shape[1]] = weights
        return keys, np.ascontiguousarray(rows, np.float32)


class WarmStartSettings(NamedTuple):
    """Which dense variables of a checkpoint of TensorFlow a new training begins with.

    Its fields are the arguments of `tf.compat.v1.train.warm_start`. Rows of the embedding service begin anew.
    """

    ckpt_to_initialize_from: str
    vars_to_warm_start: Any = ".*"
    var_name_to_vocab_info: Mapping[str, Any] | None = None
    var_name_to_prev_var_name: Mapping[str, str] | None = None


def warm_start_of(source, checkpoint):
    """Returns the `WarmStart` of a training, on rank 0; `NoWarmStart` on other ranks, which get all from rank 0's.

    Args:
      source: `RunConfig.warm_start`, or `WarmStartSettings`.
      checkpoint: the `Checkpoint` that training goes on from, or None. If there is one, nothing else is taken.

    Raises:
      UserError: there is nothing at `source` to begin with, or a file of it is damaged.
    """
    if not source or not distributed.is_chief():
        return NoWarmStart()
    if checkpoint:
        _log.info("--warm_start=%s is not read again: the training resumes from %s", source, checkpoint.path)
        return NoWarmStart()
    if isinstance(source, WarmStartSettings):
        return TensorFlowWarmStart(source)
    if _is_of_tensorflow(source):
        return TensorFlowWarmStart(WarmStartSettings(source))
    found = _checkpoint(source)
    return WarmStart(found.path, CheckpointRows(found), found) if found else WarmStart(source, ParquetRows(source))


def _is_of_tensorflow(source: str) -> bool:
    """Returns whether a path is a checkpoint of TensorFlow's Saver, or a directory of such, but no model directory."""
    if not is_local(source) or checkpoints.directories(source) or (path_of(source) / checkpoints.MANIFEST).exists():
        return False
    return os.path.exists(f"{source}.index") or tf.train.latest_checkpoint(source) is not None


def _checkpoint(source):
    """Returns the `Checkpoint` of a model directory or of a checkpoint's directory; None for any other."""
    if (path_of(source) / checkpoints.MANIFEST).exists():
        found = checkpoints.load(str(path_of(source)))
        found.verify()
        return found
    if found := checkpoints.newest_whole(source):
        return found
    if not parquet_rows.has_files(source):
        raise UserError(
            f"--warm_start={source}: nothing to begin with: expected a model directory with a checkpoint, a "
            "checkpoint's directory, or a directory with TABLE.parquet for each table, whose columns are key and row"
        )
    return None


class NoWarmStart:
    """Begins with initial values."""

    def variables(self):
        """Returns a context manager that initializes variables of the graph; held until the session is made."""
        return contextlib.nullcontext()

    def rows(self, store, configs, model_dir):
        """Gives the store the rows to begin with.

        Args:
          store: `Store`, whose tables are made and empty.
          configs: list of the tables' TableConfig.
          model_dir: of this training.
        """

    def results(self):
        """Returns a dict of what `train` returns about it."""
        return {}


class TensorFlowWarmStart(NoWarmStart):
    """Begins with dense variables of a checkpoint that TensorFlow's Saver wrote.

    Args:
      settings: `WarmStartSettings`.
    """

    def __init__(self, settings: WarmStartSettings) -> None:
        self._settings = settings

    @contextlib.contextmanager
    def variables(self) -> Iterator[None]:
        tf1.train.warm_start(*self._settings)
        yield

    def results(self) -> dict[str, Any]:
        return {"warm_start": {"source": self._settings.ckpt_to_initialize_from}}


class WarmStart(NoWarmStart):
    """Begins with the rows, and the dense variables of the same names and shapes, of `source`.

    The optimizers' state comes along where the optimizer of a table is the same, and where its variables have the same
    names. The global step, and with it the learning rate's schedule, begins at 0.

    Args:
      source: the directory, for messages.
      tables: `CheckpointRows` or `ParquetRows`.
      checkpoint: the `Checkpoint` with the dense variables; None for none.
    """

    def __init__(self, source, tables, checkpoint=None):
        self._source, self._tables, self._checkpoint = source, tables, checkpoint
        self._results = {"source": source, "rows": {}, "tables_left": [], "variables": [], "variables_left": []}
        if checkpoint:
            self._results["step"] = checkpoint.step

    @contextlib.contextmanager
    def variables(self):
        if self._checkpoint is None:
            yield
            return
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
            self._warn_of_other_share()
            yield

    def _warn_of_other_share(self):
        there, own = self._checkpoint.negative_sampling, notes().negative_sampling
        if None not in (there, own) and there != own:
            _log.warning(
                "warm start: %s was trained with --negative_sampling=%g, and this training has %g: its first "
                "predictions are calibrated for the other share",
                self._source,
                there,
                own,
            )

    def rows(self, store, configs, model_dir):
        found = {config.name: self._tables.blocks(config) for config in configs}
        self._say_what_differs(found)
        path, identity, entries = path_of(model_dir) / _DRAFT, uuid.uuid4().hex, []
        checkpoints.begin(path)
        try:
            for config in (config for config in configs if found[config.name] is not None):
                blocks, title = found[config.name], f"warm start of {config.name}"
                with tqdm.tqdm(blocks, title, unit=" blocks", disable=not sys.stderr.isatty()) as shown:
                    entries.append(snapshot_writer.write_blocks(path, config, shown, identity))
                rows = self._results["rows"][config.name] = entries[-1]["rows"]
                _log.info("warm start: %d rows of table %s from %s", rows, config.name, self._source)
            if entries:
                store.restore(str(path), entries)
        finally:
            path.remove_all()

    def _say_what_differs(self, found):
        anew = sorted(name for name, blocks in found.items() if blocks is None)
        left = self._results["tables_left"] = self._tables.others(found.keys())
        if anew and left:
            raise UserError(
                f"--warm_start: {self._source} has no rows of table {', '.join(anew)}, and this model has no place for "
                f"{', '.join(left)} from there: give the --embedding_dim, or the dims of the feature spec, that the "
                "rows were trained with"
            )
        if anew:
            _log.info("warm start: %s has no rows of table %s: they begin anew", self._source, ", ".join(anew))
        if left:
            _log.info("warm start: %s, which this model does not have", _left(left, "left in place are the tables"))

    def results(self):
        return {"warm_start": self._results}


def _left(names, what):
    if not names:
        return "none was left"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{what} {', '.join(sorted(names)[:_NAMED])}{more}"
