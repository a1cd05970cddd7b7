"""Functions that read a model's input tensors from its features."""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from ctr_trainer.features.ranked import Columns
from ctr_trainer.features.tensors import EMBEDDING, FEATURE, Features
from ctr_trainer.models.layers.weights import glorot
from ctr_trainer.system.messages.errors import UserError


def flat_inputs(features: Mapping[str, tf.Tensor]) -> list[Columns]:
    """Reads the flattened embeddings of all sparse features, one float32[B, F * dim] per table, and the dense features.

    `features` are `features.tensors.Features`, or a dict with `embedding` or `embedding/<table>`, float32[B, F, dim],
    and `dense`. Pass the list to `mlp` directly, which saves the copy of a concatenation.
    """
    tables = [name for name in features if name.startswith(f"{EMBEDDING}/")]
    names = tables or [name for name in features if name == EMBEDDING]
    return [_columns(features, name) for name in (*names, *(["dense"] if "dense" in features else []))]


def _columns(features: Mapping[str, tf.Tensor], name: str) -> Columns:
    ranked = features.ranked(name) if isinstance(features, Features) else None
    if ranked is not None:
        return ranked
    return features[name] if name == "dense" else flat(features[name])


def flat(embeddings: tf.Tensor) -> tf.Tensor:
    """Reshapes float32[B, F, dim] to float32[B, F * dim]."""
    _, count, dim = embeddings.shape.as_list()
    return tf.reshape(embeddings, [-1, count * dim])


def field_embeddings(features: Mapping[str, tf.Tensor], model: str, fields: int = 1) -> tf.Tensor:
    """Reads one vector per sparse feature, float32[B, F, dim], for models that compare vectors and need a single dim.

    Args:
      features: see `flat_inputs`.
      model: the model's name, for the errors.
      fields: the minimum number of sparse features that the model needs.

    Raises:
      UserError: the feature spec has several dims, or fewer sparse features; the message names the features.
    """
    if EMBEDDING not in features:
        spec = features.spec  # type: ignore[attr-defined]  # Only the features of a spec can have several tables.
        tables = {table.name: ", ".join(f.name for f in table.pooled) for table in spec.tables if table.pooled}
        if not tables:
            raise UserError(
                f"model {model} needs sparse features, and feature spec {spec.name!r} has none. Choose a model that "
                "reads numbers alone, such as final_mlp or wide_deep"
            )
        raise UserError(
            f"model {model} needs embeddings of one dim, and feature spec {spec.name!r} has several "
            f"({'; '.join(f'{name}: {of}' for name, of in tables.items())}): give all of them one with "
            f"embedding_dim={spec.tables[0].dim}"
        )
    embeddings = features[EMBEDDING]
    if embeddings.shape.as_list()[1] < fields:
        raise UserError(
            f"model {model} needs at least {fields} sparse features, and the feature spec has "
            f"{embeddings.shape.as_list()[1]}"
        )
    return embeddings


def field_columns(features: Mapping[str, tf.Tensor], model: str) -> Columns:
    """Reads `field_embeddings`; for a ranking request, the vectors of the context and of the candidates separately.

    The result is float32[B, F, dim], or `RankedColumns`, of which `fm` sums the context once for all candidates.
    """
    ranked = features.ranked(EMBEDDING) if isinstance(features, Features) and EMBEDDING in features else None
    return field_embeddings(features, model) if ranked is None else ranked


def all_field_embeddings(features: Mapping[str, tf.Tensor], model: str) -> tf.Tensor:
    """Reads one vector per sparse feature, then one per dense feature, float32[B, F + n, dim].

    The vector of a dense feature is x_m v_m, its value times a learned vector, and that of a `piecewise_linear` feature
    the sum of its columns, each times a learned vector. Scale numbers with a `transform` in the feature spec; otherwise
    a field of large values dominates.

    Raises:
      UserError: see `field_embeddings`.

    Source: Song et al., AutoInt: Automatic Feature Interaction Learning via Self-Attentive Neural Networks, CIKM 2019,
    equation 4.
    """
    embeddings = field_embeddings(features, model)
    if "dense" not in features:
        return embeddings
    dense, dim = features["dense"], embeddings.shape.as_list()[2]
    vectors = glorot("dense_fields", [dense.shape.as_list()[1], dim], dense.shape.as_list()[1], dim)
    widths = features.dense_widths if isinstance(features, Features) else [1]
    if max(widths) == 1:
        return tf.concat([embeddings, dense[:, :, None] * vectors], 1)
    parts = zip(tf.split(dense, widths, 1), tf.split(vectors, widths), strict=True)
    return tf.concat([embeddings, tf.stack([tf.matmul(x, part) for x, part in parts], 1)], 1)


def named_embeddings(features: Mapping[str, tf.Tensor], names: Sequence[str], model: str) -> list[tf.Tensor]:
    """Reads the embeddings of the named sparse features, a list of float32[B, dim]; each costs a copy.

    Raises:
      UserError: the feature spec has no such feature, or the feature is dense or a sequence.
    """
    there_are = [name.partition("/")[2] for name in features if name.startswith(f"{FEATURE}/")]
    for name in names:
        if name not in there_are:
            raise UserError(f"model {model}: there is no sparse feature {name!r}; choose from {', '.join(there_are)}")
    return [features[f"{FEATURE}/{name}"] for name in names]
