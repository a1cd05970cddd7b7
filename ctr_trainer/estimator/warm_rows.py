"""The rows of another model, as the tables of a new training lay them out."""

import numpy as np

from ctr_trainer.embedding.snapshot import parquet_rows, snapshot
from ctr_trainer.embedding.table.initial_rows import InitialRows
from ctr_trainer.files.paths import path_of
from ctr_trainer.messages.errors import UserError


class CheckpointRows:
    """The rows of a `Checkpoint` that was verified."""

    def __init__(self, checkpoint):
        self._checkpoint, self._configs = checkpoint, checkpoint.table_configs()

    def blocks(self, config):
        """-> iterable of (keys int64[n], rows float32[n, width]) of a table as `config` has it; None without one.

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
        """-> the tables of other names, sorted."""
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
        """-> what files are named by that belong to none of the tables, sorted."""
        taken = {str(file) for name in names for file in parquet_rows.files_of(self._directory, name)}
        root = path_of(self._directory)
        return sorted(name for name in root.files() if name.endswith(".parquet") and str(root / name) not in taken)


class _LaidOut:
    """Gives rows the layout of a table: weights without a state get the state of an initial row."""

    def __init__(self, config):
        self._width, self._initial = config.width, InitialRows(config)

    def __call__(self, keys, rows):
        """-> (keys int64[n], rows float32[n, width])."""
        keys = np.require(keys, requirements=("C", "A"))
        if rows.shape[1] < self._width:
            weights, rows = rows, self._initial.of(keys)
            rows[:, : weights.shape[1]] = weights
        return keys, np.ascontiguousarray(rows, np.float32)
