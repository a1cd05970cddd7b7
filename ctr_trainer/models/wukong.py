"""WuKong: a stack of layers that join factorization machines with linear maps of vectors."""

import dataclasses

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.inputs import all_field_embeddings, flat
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.layers.tokens import wukong_layer
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import tower


@dataclasses.dataclass(frozen=True)
class Params(ModelParams):
    """The params of WuKong.

    Attributes:
      interaction_layers: number of layers; each doubles the degree of the interactions.
      products: vectors per layer that are made of products.
      combinations: vectors per layer that are linear combinations.
      rank: products that each vector takes part in, after compression.
      product_units: widths of the hidden layers behind the products.
      layer_norm: whether the products and the outputs of each layer are normalised, as in the paper.
    """

    interaction_layers: int = 2
    products: int = 8
    combinations: int = 8
    rank: int = 8
    product_units: tuple[int, ...] = (64,)
    layer_norm: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "interaction_layers", "products", "combinations", "rank")
        self.require_widths("product_units")


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(mlp(X_n))`, `X_{l+1} = wukong_layer(X_l)`, X_0 the vectors of all features.

    Advice: scale it by layers, vectors and rank together; try `layer_norm=true` with more than three layers.

    Example:
      >>> spec = model_fn(features, None, "infer", Params(interaction_layers=1))
      >>> spec.predictions["probabilities"].shape
      TensorShape([32])

    Source: Zhang et al., Wukong: Towards a Scaling Law for Large-Scale Recommendation, ICML 2024. A dense feature has a
    learned vector that its value multiplies; in the paper a network makes vectors of all dense features. The paper has
    layer normalization; it is an option here, because on MovieLens, which has many rare ids, predictions are better
    without it.
    """
    vectors = all_field_embeddings(features, "wukong")
    for index in range(params.interaction_layers):
        vectors = wukong_layer(
            vectors,
            products=params.products,
            combinations=params.combinations,
            rank=params.rank,
            hidden_units=params.product_units,
            normalize=params.layer_norm,
            name=f"layer_{index}",
        )
    logits = dense(tower(flat(vectors), mode, params), 1, "logits", bias=params.base_logit())
    return binary_head(features, labels, mode, params, logits)
