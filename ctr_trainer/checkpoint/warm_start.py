"""Warm start: a new training starts from the rows and dense variables of another model."""

import contextlib
import dataclasses
import functools
import logging
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1
import tqdm

from ctr_trainer.checkpoint import checkpoint as checkpoints
from ctr_trainer.checkpoint.checkpoint import Checkpoint
from ctr_trainer.data import lookups
from ctr_trainer.embedding.snapshot import parquet_rows, snapshot, snapshot_writer
from ctr_trainer.embedding.store.store import Store
from ctr_trainer.embedding.table.row_space import InitialRows
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.files.paths import Advanced, is_local, path_of
from ctr_trainer.system.messages.errors import UserError

_log = logging.getLogger(__name__)
_BLOCK_ROWS = 65_536
_DRAFT = "warm_start"  # In the model directory, which a service can read: the rows in this training's layout.
# Optimizer state whose bias correction counts the steps, which start at 0: with it, the first 500 steps would be short.
_COUNTING = "/Adam", "/Adam_1", "/LAMB", "/LAMB_1"
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


def pretrained_rows(
    store: Store, spec: FeatureSpec, configs: Sequence[TableConfig], model_dir: str, source: str, advanced: Advanced
) -> None:
    """Writes the rows of `FeatureSpec.pretrained` to a store whose tables exist and are empty.

    `source` is that of the warm start, "" for none.
    """
    vectors = lookups.pretrained_of(spec)
    if vectors and source:
        raise UserError(f"warm_start={source} and [[pretrained]] both give the first rows: leave out one of them")

    def blocks(config: TableConfig) -> Iterator[Block]:
        lay_out = _layout(config)
        for _, keys, rows in vectors[config.name]:
            for at in range(0, len(keys), _BLOCK_ROWS):
                yield lay_out(keys[at : at + _BLOCK_ROWS], rows[at : at + _BLOCK_ROWS])

    for config in configs:
        if config.name in vectors and vectors[config.name][0][2].shape[1] != config.dims[0]:
            raise UserError(f"[[pretrained]]: the model has no embeddings of {config.name}: leave it out")
    if vectors:
        found = [(config, blocks(config)) for config in configs if config.name in vectors]
        _put(store, found, model_dir, "the files of [[pretrained]]", advanced)


def _put(
    store: Store, found: Sequence[tuple[TableConfig, Iterator[Block]]], model_dir: str, source: str, advanced: Advanced
) -> dict[str, int]:
    """Writes the blocks of tables to a store in which they are empty. Returns the number of rows by table."""
    path, identity, entries = path_of(model_dir) / _DRAFT, uuid.uuid4().hex, []
    checkpoints.begin(path)
    try:
        for config, blocks in found:
            with tqdm.tqdm(
                blocks, f"first rows of {config.name}", unit=" blocks", disable=not sys.stderr.isatty()
            ) as shown:
                entries.append(snapshot_writer.write_blocks(path, config, shown, identity, advanced))
            _log.info("warm start: %d rows of table %s from %s", entries[-1]["rows"], config.name, source)
        if entries:
            store.restore(str(path), entries, advanced)
    finally:
        path.remove_all()
    return {entry["table"]: entry["rows"] for entry in entries}


class WarmStartSettings(NamedTuple):
    """Selects the dense variables of a TensorFlow checkpoint with which a new training starts.

    The fields are the arguments of `tf.compat.v1.train.warm_start`. Embedding rows start with their initial values.
    """

    ckpt_to_initialize_from: str
    vars_to_warm_start: Any = ".*"
    var_name_to_vocab_info: Mapping[str, Any] | None = None
    var_name_to_prev_var_name: Mapping[str, str] | None = None


def warm_start_of(
    source: "str | WarmStartSettings | None", resumed: Checkpoint | None, advanced: Advanced = lambda text: None
) -> "WarmStart":
    """Returns the `WarmStart` of a training on rank 0. If it resumes from a checkpoint, `source` is not read.

    Raises UserError: `source` has nothing to start from, or one of its files is damaged.
    """
    if not source:
        return WarmStart()
    if resumed:
        _log.info("warm_start=%s is not read again: the training resumes from %s", source, resumed.path)
        return WarmStart()
    if isinstance(source, str) and _is_of_tensorflow(source):
        source = WarmStartSettings(source)
    if isinstance(source, WarmStartSettings):
        return WarmStart(settings=source, report={"source": source.ckpt_to_initialize_from})
    checkpoint = None
    if (path_of(source) / checkpoints.MANIFEST).exists():
        checkpoint = checkpoints.load_whole(str(path_of(source)), advanced)
    elif not (checkpoint := checkpoints.newest_whole(source, advanced)) and not parquet_rows.has_files(source):
        raise UserError(
            f"warm_start={source}: nothing to start from: expected a model directory with a checkpoint, a checkpoint's "
            "directory, or a directory with TABLE.parquet for each table, whose columns are key and row"
        )
    found = checkpoint.path if checkpoint else source
    report: dict[str, Any] = {"source": found, "rows": {}, "tables_left": [], "variables": [], "variables_left": []}
    if checkpoint:
        report["step"] = checkpoint.step
    return WarmStart(found, checkpoint, report=report)


def _is_of_tensorflow(source: str) -> bool:
    """Returns whether a path is a checkpoint of TensorFlow's Saver or a directory of such, but no model directory."""
    if not is_local(source) or checkpoints.directories(source) or (path_of(source) / checkpoints.MANIFEST).exists():
        return False
    return os.path.exists(f"{source}.index") or tf.train.latest_checkpoint(source) is not None


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """The rows and dense variables with which a new training starts, on rank 0. Other ranks get rank 0's values.

    The global step, and with it the learning-rate schedule, starts at 0. Of a checkpoint of this package, the optimizer
    state of the rows is taken if the table has the same optimizer and the optimizer is not dense; and the dense
    variables, with the state of their optimizer unless it is Adam or LAMB, of the same names, shapes and types.

    Attributes:
      source: directory of the rows: a checkpoint or Parquet files; "" for initial values.
      checkpoint: the `Checkpoint` in `source`; None for Parquet files.
      settings: selects dense variables of a TensorFlow checkpoint, or None.
      report: what was taken and what was left, for `TrainResult.warm_start`; None without a warm start.
    """

    source: str = ""
    checkpoint: Checkpoint | None = None
    settings: WarmStartSettings | None = None
    report: dict[str, Any] | None = None

    @functools.cached_property
    def _tables(self) -> dict[str, TableConfig]:
        return self.checkpoint.table_configs() if self.checkpoint else {}

    @contextlib.contextmanager
    def variables(self, negative_sampling: float | None = None) -> Iterator[None]:
        """Sets how the graph initializes its variables. Create the session within the block."""
        if self.settings:
            tf1.train.warm_start(*self.settings)
        with contextlib.ExitStack() as stack:
            if self.checkpoint:
                self._init_variables(stack.enter_context(self.checkpoint.with_local_dense()), negative_sampling)
            yield

    def rows(self, store: Store, configs: Sequence[TableConfig], model_dir: str, advanced: Advanced) -> None:
        """Writes the rows of the start to a store whose tables exist and are empty."""
        if not self.source or self.report is None:
            return
        found = {config.name: self.blocks(config, advanced) for config in configs}
        self.report["tables_left"] = self._log_differences(found)
        there = [(config, blocks) for config in configs if (blocks := found[config.name]) is not None]
        self.report["rows"] = _put(store, there, model_dir, self.source, advanced)

    def blocks(self, config: TableConfig, advanced: Advanced = lambda text: None) -> Iterator[Block] | None:
        """Returns the rows of a table in the layout of `config`; None if the source has no such table.

        Raises UserError: the rows do not have the dims of `config`.
        """
        if self.checkpoint is None:
            files = parquet_rows.files_of(self.source, config.name)
            lay_out = _layout(config)
            return (lay_out(*block) for block in parquet_rows.blocks(files, config)) if files else None
        there = self._tables.get(config.name)
        if there is None:
            return None
        if there.dims != config.dims:
            raise UserError(
                f"warm_start: table {config.name} has dims {list(config.dims)} here, and {list(there.dims)} in "
                f"{self.source}: give the embedding_dim and the model that it was trained with"
            )
        entries = [entry for entry in self.checkpoint.tables if entry["table"] == config.name]
        # The state of another optimizer cannot be used, nor can a state that counts the steps of another training.
        is_kept = there.optimizer.name == config.optimizer.name and not config.optimizer.moves_all_rows
        columns = None if is_kept else there.weights
        lay_out = _layout(config)
        blocks = snapshot.merged(self.source, entries, advanced=advanced)
        return (lay_out(keys, of.form.decode(stored)[:, :columns]) for of, keys, stored in blocks)

    def _log_differences(self, found: Mapping[str, Iterator[Block] | None]) -> list[str]:
        """Returns the tables of the source that this model does not have."""
        lacking = sorted(name for name, blocks in found.items() if blocks is None)
        left = sorted(self._tables.keys() - found.keys())
        if not self.checkpoint:  # The files that belong to no table of this model.
            taken = {str(file) for name in found for file in parquet_rows.files_of(self.source, name)}
            root = path_of(self.source)
            left = sorted(name for name in root.files() if name.endswith(".parquet") and str(root / name) not in taken)
        if lacking and left:
            raise UserError(
                f"warm_start: {self.source} has no rows of table {', '.join(lacking)}, and this model has no table "
                f"for its {', '.join(left)}: give the embedding_dim, or the dims of the feature spec, that the rows "
                "were trained with"
            )
        if lacking:
            names = ", ".join(lacking)
            _log.info("warm start: %s has no rows of table %s: it starts with initial values", self.source, names)
        if left:
            _log.info("warm start: not taken are the tables %s, which this model does not have", ", ".join(left))
        return left

    def _init_variables(self, local: Checkpoint, negative_sampling: float | None) -> None:
        """Initializes the dense variables that the checkpoint has, whose dense files are local."""
        assert self.report is not None  # A warm start with a checkpoint has a report.
        there = tf.train.load_checkpoint(local.dense_prefix)
        shapes, types = there.get_variable_to_shape_map(), there.get_variable_to_dtype_map()
        own = {v.op.name: v for v in tf1.global_variables() if v is not tf1.train.get_global_step()}
        taken = {n: v for n, v in own.items() if (shapes.get(n), types.get(n)) == (v.shape, v.dtype)}
        if not any(name.endswith("beta1_power") for name in taken):  # TensorFlow's Adam takes its count of steps too.
            taken = {name: v for name, v in taken.items() if not name.endswith(_COUNTING)}
        tf1.train.init_from_checkpoint(local.dense_prefix, taken)
        left = sorted(own.keys() - taken.keys())
        self.report.update(variables=sorted(taken), variables_left=left)
        text = f"initial values have {', '.join(left)}" if left else "none was left"
        _log.info("warm start: %d dense variables of %s; %s", len(taken), self.source, text)
        if None not in (local.negative_sampling, negative_sampling) and local.negative_sampling != negative_sampling:
            _log.warning(
                "warm start: %s was trained with negative_sampling=%g, and this training has %g: its first "
                "predictions are calibrated for the other share",
                self.source,
                local.negative_sampling,
                negative_sampling,
            )
