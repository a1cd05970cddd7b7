"""Batches that count nothing, for a rank whose `tf.data` input ends before that of another."""

import tensorflow as tf

from ctr_trainer.estimator.feed import DatasetInput, read_in_graph
from ctr_trainer.graph_notes.notes import BatchWeight, notes
from ctr_trainer.hooks.ending_hooks import EndTogetherHook
from ctr_trainer.messages.errors import UserError
from ctr_trainer.ranks import distributed

tf1 = tf.compat.v1


class PaddedInput(DatasetInput):
    """The input of a rank that goes on with batches that count nothing until the inputs of all ranks have ended.

    These are the last batch over again, at a weight of 0. In each step the ranks add up what their batches weigh and
    which of them have another one, by one exchange of two numbers beside the computation: so each knows what its batch
    counts, and after which step all of them end.

    Args:
      data: this rank's `tf.data.Dataset`. It is read one batch ahead.
      has_read: f(), called after each batch; None for nothing.

    Attributes:
      weight: scalar float32, the examples of this rank's batch that count.

    Raises:
      UserError: it is no Dataset.
    """

    def __init__(self, data, has_read=None):
        if not isinstance(data, tf.data.Dataset):
            raise UserError(
                f"uneven_inputs='pad' is for a tf.data.Dataset, and input_fn returned {type(data).__name__}: use "
                "uneven_inputs='error' (a BatchReader has as many batches on all ranks)"
            )
        batch, (self.weight, has_next) = read_in_graph(padded(data))
        super().__init__(batch, has_read)
        with tf.device("/cpu:0"):
            sums = distributed.allreduce(tf.stack([self.weight, has_next]), "batch_weights")
        notes().batch_weight = BatchWeight(self.weight, sums[0])
        self._hooks = [EndTogetherHook(sums[1])]

    def weights(self, labels):
        return tf.ones_like(labels) * tf.minimum(self.weight, 1.0)


def padded(dataset):
    """Returns the Dataset of (element, (weight, has_next)), without an end; one without any element stays so.

    `weight` is how many examples the element has, 0 where it only pads, which the last one does; `has_next` is 1 or 0,
    whether another one follows that does not pad. Both are float32.
    """
    spec = dataset.element_spec
    none = tuple(_zeros(part) for part in _parts(spec))
    elements = dataset.map(lambda *parts: (_parts(parts if isinstance(spec, tuple) else parts[0]), True))
    endless = elements.concatenate(tf.data.Dataset.from_tensors((none, False)).repeat())

    def step(state, following):
        (element, counts, begun), (next_element, next_counts) = state, following
        kept = tf.cond(next_counts, lambda: next_element, lambda: element)
        return (kept, next_counts, True), (element, counts, next_counts, begun)

    def finished(element, counts, has_next, begun):
        whole = tf.nest.pack_sequence_as(spec, element, expand_composites=True)
        parts = whole if isinstance(whole, tuple) and len(whole) == 2 else (whole, None)
        weight = tf.where(counts, tf.cast(example_count(*parts), tf.float32), 0.0)
        return whole, (weight, tf.cast(has_next, tf.float32))

    steps = endless.scan((none, False, False), step)
    return steps.take_while(lambda element, counts, has_next, begun: begun | has_next).skip(1).map(finished)


def refuse_unweighed():
    """Raises UserError where the current graph's training would train batches that only pad."""
    if not notes().weighs_batches:
        raise UserError(
            "uneven_inputs='pad': the model_fn trains the batches that only pad as well, since its train_op does not "
            "weigh them: return EstimatorSpec(mode, loss=loss, optimizer=...), or wrap the optimizer, "
            "distributed.optimizer(...) of ctr_trainer, or use uneven_inputs='error'"
        )
    updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
    if updates:
        raise UserError(
            f"uneven_inputs='pad': {updates[0].name} of the model_fn updates its moving statistics by each batch, and "
            "would by those that only pad: leave batch normalization out, or use uneven_inputs='error'"
        )


def _parts(element):
    return tuple(tf.nest.flatten(element, expand_composites=True))


def _zeros(spec):
    """Returns the smallest tensor of a `tf.TensorSpec`."""
    return tf.zeros([size or 0 for size in spec.shape.as_list()] if spec.shape.rank else [], spec.dtype)


def example_count(features, labels):
    """Returns how many examples a batch has: the first dimension of its labels, or of its first feature without any."""
    first = [*tf.nest.flatten(labels), *tf.nest.flatten(features)]
    first = next(tensor for tensor in first if tensor is not None)
    if isinstance(first, tf.SparseTensor):
        return first.dense_shape[0]
    if isinstance(first, tf.RaggedTensor):
        return first.nrows()
    return tf.shape(first)[0] if first.shape.rank != 0 else 1
