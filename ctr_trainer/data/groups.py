"""Groups of a source's rows as arrays."""

import numpy as np

from ctr_trainer.data.batch import Bag
from ctr_trainer.data.encode import ID_PREFIX
from ctr_trainer.data.rows import Rows, concatenate

_BLOCK_ROWS = 1024


class RowGroups:
    """Reads groups of a source as arrays; for one thread at a time.

    Args:
      source: Source.
      spec: FeatureSpec, that of the source but for the dims of its tables.
    """

    def __init__(self, source, spec):
        self._source, self._spec = source, spec
        self.rows = source.group_rows

    def read(self, groups):
        """-> Rows of the groups, in the order given.

        Raises:
          UserError: a file is gone or not the one it was.
        """
        spec, total = self._spec, sum(self.rows[g] for g in groups)
        keys = {t.name: np.empty((total, len(t.single)), np.int64) for t in spec.tables}
        dense = np.empty((total, len(spec.dense)), np.float32)
        rest, start = [], 0
        for group in groups:
            columns = self._source.read(group)
            part = slice(start, start := start + self.rows[group])
            for table in spec.tables:
                _fill(keys[table.name][part], [columns[f.name].to_numpy() for f in table.single])
            _fill(dense[part], [columns[f.name].to_numpy() for f in spec.dense])
            rest.append(_rest(spec, columns))
        rows = concatenate(rest)
        return Rows(keys, rows.bags, dense, rows.labels, rows.weights, rows.ids)

    def close(self):
        """Closes the files."""
        self._source.close()


def _fill(matrix, columns):
    """Writes columns into a matrix, some rows of all columns at a time: what they share of the cache stays there."""
    for start in range(0, len(matrix), _BLOCK_ROWS):
        stop = start + _BLOCK_ROWS
        for at, column in enumerate(columns):
            matrix[start:stop, at] = column[start:stop]


def _rest(spec, columns):
    """The columns that are no matrix: bags, labels, weights, ids."""
    labels = columns["label"].to_numpy()
    return Rows(
        keys={},
        bags={f.name: _bag(columns[f.name].combine_chunks()) for f in spec.bags},
        dense=labels[:, None][:, :0],
        labels=labels,
        weights=columns["weight"].to_numpy() if spec.weight else np.ones(len(labels), np.float32),
        ids={name: columns[ID_PREFIX + name].to_numpy() for name in spec.ids},
    )


def _bag(column):
    splits = column.offsets.to_numpy().astype(np.int64)
    return Bag(column.values.to_numpy(), splits)
