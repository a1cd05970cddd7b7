"""The labels that a multi-task model predicts."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import tensorflow as tf

from ctr_trainer.features.ranked import Columns
from ctr_trainer.layers.experts import towers
from ctr_trainer.models.head import Labels, label_names
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.tower import tower
from ctr_trainer.system.messages.errors import UserError


@dataclasses.dataclass(frozen=True)
class TaskParams(ModelParams):
    """The params that all multi-task models have.

    Attributes:
      tower_units: widths of the hidden layers of each task's tower; with none, the tower is a logit alone.
    """

    several_labels = True

    tower_units: tuple[int, ...] = (64,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(units < 1 for units in self.tower_units):
            raise self.wrong("tower_units", "each width must be at least 1")


def task_names(features: Mapping[str, tf.Tensor], labels: Labels, model: str) -> list[str]:
    """Returns the labels' names, in the order of the feature spec.

    Args:
      features, labels: what a `model_fn` takes.
      model: the model's name, for the error.

    Raises:
      UserError: the data has one label only.
    """
    names = label_names(features, labels)
    if len(names) < 2:
        raise UserError(
            f"model {model} predicts several labels and the data has one: give the feature spec a [[label]] for each"
        )
    return names


def task_logits(
    inputs: Mapping[str, Columns | Sequence[Columns]], mode: str, params: TaskParams
) -> dict[str, tf.Tensor]:
    """Makes each task's tower, see `layers.towers.towers`.

    Args:
      inputs: see `layers.towers.towers`.
      mode: one of `ModeKeys`.
      params: `TaskParams`.

    Returns:
      dict of task name -> logits, float32[B, 1].
    """
    biases = {name: params.base_logit(name) for name in inputs}
    if not params.tower_units:
        return towers(inputs, biases=biases)
    network = functools.partial(tower, mode=mode, params=params, hidden_units=params.tower_units)
    return towers(inputs, network, biases)
