"""Several devices driven by one process: a batch is cut into as many parts, each with the model on a device of its own.

It is what PyTorch calls DataParallel and TensorFlow 1 called towers; the benchmark `methods` measures it beside several
processes.
"""

import dataclasses

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.graph_notes.estimator_spec import EstimatorSpec, ModeKeys
from ctr_trainer.messages.errors import UserError

tf1 = tf.compat.v1


def gpus_of(towers: int) -> int:
    """Returns how many GPUs a process with so many towers uses: one for each, or none if the machine has fewer."""
    return towers if len(tf.config.list_physical_devices("GPU")) >= towers else 0


def in_towers(model_fn, towers):
    """-> a `model_fn` that trains the model in towers, which have the same variables.

    With W_i the weights of part i's examples and L_i its loss, the loss is sum_i W_i L_i / sum_i W_i, so that its
    gradient is that of the whole batch. On a machine with as many GPUs tower i is on GPU i; else all are on the
    processor, whose threads compute them side by side.

    Args:
      model_fn: of this package's models, with `ModelParams`.
      towers: how many; the batch size divides by it.

    Raises:
      UserError: the model normalizes over the batch, or the batch does not divide.
    """

    def trained_in_towers(features, labels, mode, params):
        if mode != ModeKeys.TRAIN:
            return model_fn(features, labels, mode, params)
        if params.batch_norm:
            raise UserError("towers normalize over their own part of a batch: leave out --batch_norm")
        if features.batch_size % towers:
            raise UserError(f"a batch of {features.batch_size} examples does not divide by {towers} towers")
        on_gpus = gpus_of(towers) > 0
        specs, weights = [], []
        for number in range(towers):
            part = _Part(features, number, towers)
            # The head hands the loss that is to be trained to what makes the train_op.
            own = dataclasses.replace(params, train_op_fn=lambda loss, _: loss)
            with (
                tf1.variable_scope(tf1.get_variable_scope(), reuse=number > 0),
                tf.device(f"/gpu:{number}" if on_gpus else "/cpu:0"),
            ):
                specs.append(model_fn(part, tf.nest.map_structure(part.cut, labels), mode, own))
                weights.append(tf.reduce_sum(part["weight"]))
        shares = [tf.math.divide_no_nan(weight, tf.add_n(weights)) for weight in weights]
        loss, trained = (
            tf.add_n([share * getattr(spec, name) for share, spec in zip(shares, specs, strict=True)])
            for name in ("loss", "train_op")
        )
        predictions = {name: tf.concat([spec.predictions[name] for spec in specs], 0) for name in specs[0].predictions}
        return EstimatorSpec(mode, predictions, loss, params.train_op_fn(trained, features))

    return trained_in_towers


class _Part(Features):
    """A part of a batch's examples.

    Args:
      whole: `FedFeatures`.
      number, count: which part, and how many there are.
    """

    def __init__(self, whole, number, count):
        super().__init__(whole.spec, whole.statistics)
        self._whole, self.batch_size = whole, whole.batch_size // count
        self._rows = slice(number * self.batch_size, (number + 1) * self.batch_size)

    def cut(self, tensor):
        """[B, ...] -> [B / count, ...]"""
        return tensor[self._rows]

    def _make(self, name):
        return self.cut(self._whole[name])

    _raw_dense = _weight = _segment = _sequence = _mask = None  # Of the whole batch.
