"""The histories that a model reads, and the target that each is compared with."""

import dataclasses

import tensorflow as tf

from ctr_trainer.features.columns import SparseFeature
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.tensors import Features
from ctr_trainer.models.params import ModelParams
from ctr_trainer.system.messages.errors import UserError


@dataclasses.dataclass(frozen=True)
class HistoryParams(ModelParams):
    """The params that all models of histories have.

    Attributes:
      target: single-valued feature that histories are compared with; by default the one that shares a history's slot.
      sequences: sequence features to read; by default all.
    """

    target: str = ""
    sequences: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class History:
    """One sequence feature as tensors.

    Attributes:
      name: name of the feature.
      target: float32[B, dim], the vector of the target.
      values: float32[B, L, dim], the vectors of the behaviours, the oldest first.
      mask: float32[B, L], 1 for a behaviour and 0 for the padding at the end.
    """

    name: str
    target: tf.Tensor
    values: tf.Tensor
    mask: tf.Tensor

    def newest_first(self) -> tf.Tensor:
        """Returns float32[B, L, dim], the behaviours from the newest on; the padding stays at the end."""
        return tf.reverse_sequence(self.values, tf.cast(tf.reduce_sum(self.mask, 1), tf.int32), 1)


def histories(features: Features, params: HistoryParams, model: str) -> list[History]:
    """Reads the histories that a model's params choose.

    Args:
      features: `features.tensors.Features`.
      params: `HistoryParams`.
      model: the model's name, for the errors.

    Returns:
      list of `History`.

    Raises:
      UserError: there is no such sequence, or no target, or the target has another dim; the message names the feature.
    """
    found = []
    for sequence in _sequences(features.spec, params, model):
        target = _target(features.spec, params, model, sequence)
        values, mask = features[f"sequence/{sequence.name}"], features[f"sequence_mask/{sequence.name}"]
        found.append(History(sequence.name, features[f"feature/{target.name}"], values, mask))
    return found


def require_divisor(heads: int, history: History) -> None:
    """Raises UserError if the number of attention heads does not divide the dim of a history."""
    dim = history.values.shape.as_list()[2]
    if dim % heads:
        raise UserError(
            f"heads={heads}: does not divide {dim}, the dim of sequence {history.name!r}; give a divisor of it"
        )


def _sequences(spec: FeatureSpec, params: HistoryParams, model: str) -> list[SparseFeature]:
    all_sequences = {f.name: f for f in spec.sequences}
    if not all_sequences:
        raise UserError(
            f"model {model} reads histories, and feature spec {spec.name!r} has none: give a [[sparse]] feature "
            'combiner = "none" and a max_length'
        )
    for name in params.sequences:
        if name not in all_sequences:
            raise UserError(
                f"sequences={name}: feature spec {spec.name!r} has no such sequence; it has {', '.join(all_sequences)}"
            )
    return [all_sequences[name] for name in params.sequences or all_sequences]


def _target(spec: FeatureSpec, params: HistoryParams, model: str, sequence: SparseFeature) -> SparseFeature:
    single = {f.name: f for f in spec.sparse if f.combiner is None}
    if params.target:
        if params.target not in single:
            raise UserError(
                f"target={params.target}: feature spec {spec.name!r} has no single-valued feature of "
                f"that name; it has {', '.join(single)}"
            )
        target = single[params.target]
    else:
        sharing = [f for f in single.values() if f.slot == sequence.slot]
        if len(sharing) != 1:
            names = f"{len(sharing)} do ({', '.join(f.name for f in sharing)})" if sharing else "none does"
            raise UserError(
                f"model {model}: what is sequence {sequence.name!r} compared with? One single-valued feature should "
                f"share its slot {sequence.slot!r} and {names}; name it with the param target=NAME"
            )
        (target,) = sharing
    if target.dim != sequence.dim:
        raise UserError(
            f"model {model}: sequence {sequence.name!r} has dim {sequence.dim} and its target {target.name!r} dim "
            f"{target.dim}; they are compared, so give both one dim"
        )
    return target
