"""What the parts of a model take from its features, whichever of them the feature spec has."""

import tensorflow as tf

from ctr_trainer.errors import UserError

EMBEDDING = "embedding"


def flat_embeddings(features):
    """-> list of float32[B, F * dim], one a table: the vectors of its features one after another; [] without any.

    Args:
      features: `features.tensors.Features`, or a dict with `embedding` or `embedding/<table>`, float32[B, F, dim].
    """
    tables = [name for name in features if name.startswith(f"{EMBEDDING}/")]
    names = tables or [name for name in features if name == EMBEDDING]
    return [flat(features[name]) for name in names]


def flat_inputs(features):
    """-> list of float32[B, n]: `flat_embeddings`, then the dense features where there are any."""
    return flat_embeddings(features) + ([features["dense"]] if "dense" in features else [])


def flat(embeddings):
    """float32[B, F, dim] -> float32[B, F * dim]."""
    _, count, dim = embeddings.shape
    return tf.reshape(embeddings, [-1, count * dim])


def field_embeddings(features, model, fields=1):
    """-> float32[B, F, dim]: a vector a sparse feature, for models that compare them and so need one dim.

    Args:
      features: as for `flat_embeddings`.
      model: its name, for the errors.
      fields: the fewest features that the model makes sense of.

    Raises:
      UserError: the feature spec has several dims, or fewer sparse features; names them.
    """
    if EMBEDDING not in features:
        spec = features.spec
        if not spec.tables:
            raise UserError(f"--model={model} needs sparse features, and feature spec {spec.name!r} has none")
        tables = "; ".join(f"{t.name}: {', '.join(f.name for f in t.single + t.bags)}" for t in spec.tables)
        raise UserError(
            f"--model={model} needs embeddings of one dim, and feature spec {spec.name!r} has several ({tables}): give "
            f"all of them one with --embedding_dim={spec.tables[0].dim}"
        )
    embeddings = features[EMBEDDING]
    if embeddings.shape[1] < fields:
        raise UserError(f"--model={model} needs {fields} sparse features or more, and there is {embeddings.shape[1]}")
    return embeddings
