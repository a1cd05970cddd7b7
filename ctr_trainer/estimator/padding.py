"""Zero-weight batches, for a rank whose `tf.data` input ends before another rank's input."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.estimator.feed import DatasetInput, read_in_graph
from ctr_trainer.estimator.hooks.ending_hooks import EndTogetherHook
from ctr_trainer.graph_notes.notes import BatchWeight, notes
from ctr_trainer.ranks import distributed
from ctr_trainer.system.messages.errors import UserError


class PaddedInput(DatasetInput):
    """The input of a rank, continued with zero-weight batches until the inputs of all ranks have ended.

    A zero-weight batch repeats the last batch. In each step the ranks sum the weights of their batches and the
    number of ranks that have another batch, by one exchange of two numbers that runs concurrently with the computation.
    So each rank knows the share of its batch, and after which step all ranks end.

    Args:
      data: this rank's `tf.data.Dataset`, read one batch ahead.
      has_read: f(), called after each batch; None for nothing.

    Attributes:
      weight: scalar float32, the number of examples in this rank's batch; 0 for a zero-weight batch.

    Raises:
      UserError: `data` is not a Dataset.
    """

    def __init__(self, data: Any, has_read: Callable[[], None] | None = None) -> None:
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

    def weights(self, labels: tf.Tensor) -> tf.Tensor:
        return tf.ones_like(labels) * tf.minimum(self.weight, 1.0)


def padded(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a Dataset of (element, (weight, has_next)) that repeats the last element forever; empty if `dataset` is.

    `weight` is the number of examples in the element, or 0 for the repetitions. `has_next` is 1 if an element follows
    that is not a repetition, and 0 otherwise. Both are float32.
    """
    spec = dataset.element_spec
    none = tuple(_zeros(part) for part in _parts(spec))
    elements = dataset.map(lambda *parts: (_parts(parts if isinstance(spec, tuple) else parts[0]), True))
    endless = elements.concatenate(tf.data.Dataset.from_tensors((none, False)).repeat())

    def step(state: Any, following: Any) -> Any:
        (element, counts, begun), (next_element, next_counts) = state, following
        kept = tf.cond(next_counts, lambda: next_element, lambda: element)
        return (kept, next_counts, True), (element, counts, next_counts, begun)

    def finished(element: Any, counts: tf.Tensor, has_next: tf.Tensor, begun: tf.Tensor) -> Any:
        whole = tf.nest.pack_sequence_as(spec, element, expand_composites=True)
        parts = whole if isinstance(whole, tuple) and len(whole) == 2 else (whole, None)
        weight = tf.where(counts, tf.cast(example_count(*parts), tf.float32), 0.0)
        return whole, (weight, tf.cast(has_next, tf.float32))

    steps = endless.scan((none, False, False), step)
    return steps.take_while(lambda element, counts, has_next, begun: begun | has_next).skip(1).map(finished)


def refuse_unweighed() -> None:
    """Raises UserError if the current graph would train on zero-weight batches."""
    if not notes().weighs_batches:
        raise UserError(
            "uneven_inputs='pad': the train_op of the model_fn does not weigh the batches, so it would train on the "
            "zero-weight batches too: return EstimatorSpec(mode, loss=loss, optimizer=...), or wrap the optimizer, "
            "distributed.optimizer(...) of ctr_trainer, or use uneven_inputs='error'"
        )
    updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
    if updates:
        raise UserError(
            f"uneven_inputs='pad': {updates[0].name} of the model_fn updates moving statistics by each batch, "
            "zero-weight batches included: leave batch normalization out, or use uneven_inputs='error'"
        )


def _parts(element: Any) -> tuple[tf.Tensor, ...]:
    return tuple(tf.nest.flatten(element, expand_composites=True))


def _zeros(spec: tf.TensorSpec) -> tf.Tensor:
    """Returns the smallest tensor of a `tf.TensorSpec`."""
    return tf.zeros([size or 0 for size in spec.shape.as_list()] if spec.shape.rank else [], spec.dtype)


def example_count(features: Any, labels: Any) -> tf.Tensor | int:
    """Returns the first dimension of a batch's labels, or of its first feature if there are no labels."""
    tensors = [*tf.nest.flatten(labels), *tf.nest.flatten(features)]
    first = next(tensor for tensor in tensors if tensor is not None)
    if isinstance(first, tf.SparseTensor):
        return first.dense_shape[0]
    if isinstance(first, tf.RaggedTensor):
        return first.nrows()
    return tf.shape(first)[0] if first.shape.rank != 0 else 1
