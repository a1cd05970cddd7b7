"""An input that the graph reads itself."""

import numpy as np
import tensorflow as tf

from ctr_trainer.estimator.feed import Feed
from ctr_trainer.estimator.graph_input import GraphInput

tf1 = tf.compat.v1


class DatasetInput(GraphInput):
    """A `tf.data.Dataset` of (features, labels), or a tuple of the two as tensors: read inside the graph.

    It starts anew after a restart.

    Args:
      data: the Dataset or the tensors; without labels, the features alone.
      has_read: f(), called after each batch; None for nothing.
    """

    _hooks = ()

    def __init__(self, data, has_read=None):
        data = read_in_graph(data) if isinstance(data, tf.data.Dataset) else data
        batch = data if isinstance(data, tuple) else (data, None)
        super().__init__(*(_counted(batch, has_read) if has_read else batch))

    def connect(self, store, config, spec=None, trained=None, within_training=False, clock=None):
        return Feed(self, self._hooks)


def read_in_graph(dataset):
    """-> the tensors of a batch of a `tf.data.Dataset`, which each session reads from the beginning."""
    iterator = tf1.data.make_initializable_iterator(dataset)
    # Run with the tables when a session starts.
    tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


def _counted(batch, has_read):
    """-> (features, labels) of a batch, which come after `has_read` was called."""

    def counted():
        has_read()
        return np.int32(0)

    read = [tensor for tensor in tf.nest.flatten(batch, True) if tensor is not None]
    with tf.control_dependencies(read), tf.device("/cpu:0"):
        count = tf.numpy_function(counted, [], tf.int32)
    with tf.control_dependencies([count]):
        return [
            tf.nest.map_structure(tf.identity, part, expand_composites=True) if part is not None else None
            for part in batch
        ]
