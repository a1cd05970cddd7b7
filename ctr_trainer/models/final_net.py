"""FinalNet: two stacks of factorized interaction layers that learn from their common prediction."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import tensorflow as tf

from ctr_trainer.features.ranked import Columns
from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.inputs import flat_inputs
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import self_distillation, tower
from ctr_trainer.settings.setting import setting


@dataclasses.dataclass(frozen=True)
class Params(ModelParams):
    """The params of FinalNet."""

    blocks: int = setting(2, "stacks, each of the widths `hidden_units`", minimum=1)
    residual: str = setting(
        "concat",
        "whether a layer's linear part and its products are next to each other (concat), or added up (sum)",
        choices=("concat", "sum"),
    )

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        if self.residual == "concat" and any(units % 2 for units in self.hidden_units):
            yield "{hidden_units}: must be even for residual=concat"


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(mean_k z_k)`, `z_k = w_k block_k(h) + b_k`; a block is layers `activation(norm(y(x)))`.

        loss = cross entropy(label, p) + sum_k cross entropy(p, sigmoid(z_k)), without gradients to p in the second sum

    y is `factorized_interaction`, h all features side by side. With one block there is no second sum.

    Advice: keep the two blocks; one block is half the cost and nearly as good on much data.

    Source: Zhu et al., FINAL: Factorized Interaction Layer for CTR Prediction, SIGIR 2023; FuxiCTR's
    FinalNet, whose default activation is none. The optional gates over the fields of the first block are left out.
    """
    inputs, streams = flat_inputs(features), []
    layer = functools.partial(factorized_interaction, residual=params.residual)
    for block in range(params.blocks):
        x = tower(inputs, mode, params, name=f"block_{block}", layer=layer)
        streams.append(dense(x, 1, f"block_{block}/logits", bias=params.base_logit()))
    logits = tf.add_n(streams) / params.blocks
    extra = self_distillation(features, mode, logits, streams) if params.blocks > 1 else None
    return binary_head(features, labels, mode, params, logits, extra)


def factorized_interaction(
    inputs: Columns | Sequence[Columns], units: int, residual: str = "concat", name: str = "factorized"
) -> tf.Tensor:
    """Multiplies two linear maps of the input, so that each layer doubles the degree of the interactions.

        [a, c] = x W + b,   y = [a, a * c] for `concat`,   y = a + a * c for `sum`

    `inputs` is x, float32[B, n_i] or a list of such tensors; the result is y, float32[B, units].
    """
    linear, gate = tf.split(dense(inputs, units if residual == "concat" else 2 * units, name), 2, 1)
    return tf.concat([linear, linear * gate], 1) if residual == "concat" else linear + linear * gate
