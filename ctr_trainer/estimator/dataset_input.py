"""An input that the graph reads itself."""

import numpy as np
import tensorflow as tf


class DatasetInput:
    """A `tf.data.Dataset` of (features, labels), or a tuple of the two as tensors: read inside the graph."""

    fed = uses_embeddings = False
    batch_size = steps = batches = epochs = in_epochs = None
    weight = None  # A scalar tensor where batches count differently.

    def __init__(self, data):
        if isinstance(data, tf.data.Dataset):
            iterator = tf.compat.v1.data.make_initializable_iterator(data)
            # Run with the tables when a session starts, so that each session reads from the beginning.
            tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
            data = iterator.get_next()
        self.features, self.labels = data if isinstance(data, tuple) else (data, None)
        self.hook, self.hooks, self.embeddings = None, [], None

    def weights(self, labels):
        """-> float32[B], what each example counts in the metrics.

        Args:
          labels: float32[B], of the batch.
        """
        return tf.ones_like(labels)

    def count(self, has_read):
        """Calls `has_read`, f(), after each batch; before the model is built."""

        def counted():
            has_read()
            return np.int32(0)

        read = [tensor for tensor in tf.nest.flatten((self.features, self.labels), True) if tensor is not None]
        with tf.control_dependencies(read), tf.device("/cpu:0"):
            count = tf.numpy_function(counted, [], tf.int32)
        with tf.control_dependencies([count]):
            self.features, self.labels = (
                tf.nest.map_structure(tf.identity, part, expand_composites=True) if part is not None else None
                for part in (self.features, self.labels)
            )

    def position_after(self, steps):
        """A Dataset starts anew after a restart."""
        return

    def epochs_after(self, steps):
        """A Dataset does not know."""
        return

    def close(self):
        """Nothing to end: the graph owns the iterator."""
