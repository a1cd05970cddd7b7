"""A model split into towers, for the methods of `settings.py`: parts of a batch, each computed on its own device."""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ctr_trainer.features.tensors import Features, FedFeatures
from ctr_trainer.models.estimator_spec import EstimatorSpec, ModeKeys
from ctr_trainer.models.head import Labels
from ctr_trainer.system.messages.errors import UserError

tf1 = tf.compat.v1


def gpus_of(towers: int) -> int:
    """Returns the number of GPUs that a process uses: one for each tower, or none if the machine has fewer."""
    return towers if len(tf.config.list_physical_devices("GPU")) >= towers else 0


def in_towers(model_fn: Callable[..., EstimatorSpec], towers: int) -> Callable[..., EstimatorSpec]:
    """Returns a `model_fn` that trains the model in towers, which share their variables.

    Let W_i be the sum of the weights of part i's examples, and L_i its loss. The loss is sum_i W_i L_i / sum_i W_i, so
    that its gradient equals the gradient of the whole batch. On a machine with at least as many GPUs as towers, tower i
    is on GPU i; otherwise all towers are on the CPU, whose threads compute them concurrently. The model must be one of
    this package, with `ModelParams` as its params.

    Raises:
      UserError: the model normalizes over the batch, or the batch size is not divisible by the number of towers.
    """

    def trained_in_towers(features: FedFeatures, labels: Labels, mode: str, params: Any) -> EstimatorSpec:
        if mode != ModeKeys.TRAIN:
            return model_fn(features, labels, mode, params)
        if params.batch_norm:
            raise UserError("--batch_norm would normalize each tower over its own part of a batch: leave it out")
        assert features.batch_size is not None  # All batches of a training have the same size.
        size, rest = divmod(features.batch_size, towers)
        if rest:
            raise UserError(f"a batch of {features.batch_size} examples is not divisible by {towers} towers")
        on_gpus = gpus_of(towers) > 0
        specs, weights = [], []
        for number in range(towers):
            part = _Part(features, size, number)
            # The head passes the training loss to train_op_fn, which here returns it unchanged.
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
    """The features of part `number` of a batch, whose parts have `size` examples each."""

    def __init__(self, whole: FedFeatures, size: int, number: int) -> None:
        super().__init__(whole.spec, whole.statistics)
        self._whole, self.batch_size = whole, size
        self._rows = slice(number * size, (number + 1) * size)

    def cut(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns this part of a tensor [B, ...] of the whole batch."""
        return tensor[self._rows]

    def _make(self, name: str) -> tf.Tensor:
        return self.cut(self._whole[name])

    # These methods create tensors of the whole batch; `_make` does not call them.
    _raw_dense = _weight = _segment = _sequence = _mask = None  # type: ignore[assignment]
