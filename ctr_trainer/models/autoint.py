"""AutoInt: layers of self-attention between the fields, next to a deep network."""

import dataclasses

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.inputs import all_field_embeddings, flat, flat_inputs
from ctr_trainer.models.layers.interactions import interacting
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import tower


@dataclasses.dataclass(frozen=True)
class Params(ModelParams):
    """The params of AutoInt.

    Attributes:
      attention_layers: number of attention layers; each adds one to the degree of the interactions.
      heads: number of attentions side by side in a layer.
      head_dim: width of each attention's queries, keys and values.
      deep: whether there is a deep network next to the attention, as in the paper's AutoInt+.
    """

    attention_layers: int = 3
    heads: int = 2
    head_dim: int = 16
    deep: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "attention_layers", "heads", "head_dim")


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(w [attention(e), mlp([e_1, ..., e_F, x])] + b)`; e has a vector for each dense feature too.

    Advice: it needs embeddings of one dim; its time grows with the square of the fields, so leave `deep` on and the
    layers few.

    Example:
      >>> spec = model_fn(features, None, "infer", Params(attention_layers=2, head_dim=8))
      >>> spec.predictions["probabilities"].shape
      TensorShape([32])

    Source: Song et al., AutoInt: Automatic Feature Interaction Learning via Self-Attentive Neural Networks, CIKM 2019,
    sections 4 and 5.5.
    """
    fields = all_field_embeddings(features, "autoint")
    for index in range(params.attention_layers):
        fields = interacting(fields, params.heads, params.head_dim, f"attention_{index}")
    last = [flat(fields)]
    if params.deep:
        last.append(tower(flat_inputs(features), mode, params))
    return binary_head(features, labels, mode, params, dense(last, 1, "logits", bias=params.base_logit()))
