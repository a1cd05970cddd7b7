"""What a checkpoint holds."""

import numpy as np
import tensorflow as tf

from ctr_trainer.embedding.snapshot import snapshot


def values(checkpoint):
    """Returns a dict of the dense variables by name, the sorted `keys`, and their `rows`."""
    reader = tf.train.load_checkpoint(checkpoint.dense_prefix)
    dense = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    blocks = [(keys.copy(), rows.copy()) for _, keys, rows in snapshot.iterate(checkpoint.path, checkpoint.tables)]
    keys, rows = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return {**dense, "keys": np.sort(keys), "rows": rows[np.argsort(keys)]}
