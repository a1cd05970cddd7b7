"""FinalMLP: two deep networks behind gates, and a bilinear fusion of their outputs."""

import dataclasses

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.gates import fusion, gated
from ctr_trainer.models.layers.inputs import flat_inputs, named_embeddings
from ctr_trainer.models.layers.weights import glorot
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import tower


@dataclasses.dataclass(frozen=True)
class Params(ModelParams):
    """The params of FinalMLP.

    Attributes:
      second_units: widths of the second stream's hidden layers; by default the widths of the first, `hidden_units`.
      heads: number of parts that each stream's output is cut into; the h-th parts of both streams interact.
      gate_units: width of the gates' hidden layers.
      first_context: sparse features that the first stream's gate reads; without any, all examples are gated alike.
      second_context: sparse features that the second stream's gate reads; without any, all are gated alike.
    """

    second_units: tuple[int, ...] = ()
    heads: int = 1
    gate_units: int = 64
    first_context: tuple[str, ...] = ()
    second_context: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "heads", "gate_units")
        if self.second_units:
            self.require_widths("second_units")
        ends = {self.hidden_units[-1], (self.second_units or self.hidden_units)[-1]}
        if any(units % self.heads for units in ends):
            raise self.wrong("heads", f"must divide the streams' last widths, {' and '.join(map(str, sorted(ends)))}")


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(fusion(mlp_1(gate_1 * h), mlp_2(gate_2 * h)))`, with h all features side by side.

    Advice: name contexts that differ, as user features for one stream and item features for the other.

    Example:
      >>> spec = model_fn(features, None, "infer", Params(first_context=("user",), second_context=("item",)))
      >>> spec.predictions["probabilities"].shape
      TensorShape([32])

    Source: Mao et al., FinalMLP: An Enhanced Two-Stream MLP Model for CTR Prediction, AAAI 2023, section 3.
    """
    inputs = tf.concat(flat_inputs(features), 1)
    streams = [
        ("first", params.first_context, params.hidden_units),
        ("second", params.second_context, params.second_units or params.hidden_units),
    ]
    outputs = []
    for name, context, units in streams:
        if context:
            looked_at = tf.concat(named_embeddings(features, context, "final_mlp"), 1)
        else:
            looked_at = glorot(f"{name}_context", [1, params.gate_units], 1, params.gate_units)
        gate = gated(inputs, looked_at, params.gate_units, f"{name}_gate")
        outputs.append(tower(gate, mode, params, units, name))
    first, second = outputs
    logits = fusion(first, second, params.heads, bias=params.base_logit())
    return binary_head(features, labels, mode, params, logits)
