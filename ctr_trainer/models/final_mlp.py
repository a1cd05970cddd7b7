"""FinalMLP: two deep networks behind gates, and a bilinear fusion of their outputs."""

import dataclasses
from collections.abc import Iterator

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.inputs import flat_inputs, named_embeddings
from ctr_trainer.models.layers.mlp import dense, gated
from ctr_trainer.models.layers.weights import glorot
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import tower
from ctr_trainer.settings.setting import setting


@dataclasses.dataclass(frozen=True)
class Params(ModelParams):
    """The params of FinalMLP."""

    second_units: tuple[int, ...] = setting(
        (), "widths of the second stream's hidden layers; by default the widths of the first, `hidden_units`", minimum=1
    )
    heads: int = setting(1, "parts of each stream's output; the h-th parts of both streams interact", minimum=1)
    gate_units: int = setting(64, "width of the gates' hidden layers", minimum=1)
    first_context: tuple[str, ...] = setting(
        (), "sparse features that the first stream's gate reads; without any, all examples are gated alike"
    )
    second_context: tuple[str, ...] = setting(
        (), "sparse features that the second stream's gate reads; without any, all are gated alike"
    )

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        ends = {self.hidden_units[-1], (self.second_units or self.hidden_units)[-1]}
        if any(units % self.heads for units in ends):
            yield f"{{heads}}: must divide the streams' last widths, {' and '.join(map(str, sorted(ends)))}"


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(fusion(mlp_1(gate_1 * h), mlp_2(gate_2 * h)))`, with h all features side by side.

    Advice: name contexts that differ, as user features for one stream and item features for the other.

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


def fusion(first: tf.Tensor, second: tf.Tensor, heads: int = 1, bias: float = 0.0) -> tf.Tensor:
    """Computes `b + w_1 o_1 + w_2 o_2 + sum_h o_1h' W_h o_2h`: the h-th parts of both streams interact.

    The streams are o_1, float32[B, n], and o_2, float32[B, m]; `heads` divides n and m. All W_h together have
    n m / heads weights. The result is the logits, float32[B, 1].
    """
    n, m = first.shape.as_list()[1] // heads, second.shape.as_list()[1] // heads
    with tf.compat.v1.variable_scope("fusion"):
        kernel = glorot("kernel", [heads, n, m], n, m)
        parts = tf.transpose(tf.reshape(first, [-1, heads, n]), [1, 0, 2])
        turned = tf.transpose(tf.matmul(parts, kernel), [1, 0, 2])
        together = turned * tf.reshape(second, [-1, heads, m])
        return dense([first, second], 1, "linear", bias=bias) + tf.reduce_sum(together, [1, 2])[:, None]
