"""What a checkpoint holds, and what a training ends with."""

import numpy as np
import tensorflow as tf

from ctr_trainer.embedding.snapshot import snapshot

tf1 = tf.compat.v1


class Witness(tf1.train.SessionRunHook):
    """Keeps the dense variables that training ends with."""

    def begin(self):
        self._variables = {v.op.name: v for v in tf1.global_variables()}

    def end(self, session):
        self.dense = session.run(self._variables)


def rows(checkpoint):
    """Returns a dict of the sorted `keys` of a checkpoint, and their `rows`."""
    blocks = [(keys.copy(), rows.copy()) for _, keys, rows in snapshot.iterate(checkpoint.path, checkpoint.tables)]
    keys, values = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return {"keys": np.sort(keys), "rows": values[np.argsort(keys)]}


def rows_by_key(checkpoint):
    """Returns a dict of key -> row for the tables of a checkpoint."""
    found = rows(checkpoint)
    return dict(zip(found["keys"].tolist(), found["rows"], strict=True))


def values(checkpoint):
    """Returns a dict of the dense variables by name, the sorted `keys`, and their `rows`."""
    reader = tf.train.load_checkpoint(checkpoint.dense_prefix)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()} | rows(checkpoint)


def by_file_name(values):
    """Returns the dict with names that `np.savez` takes."""
    return {name.replace("/", "."): value for name, value in values.items()}
