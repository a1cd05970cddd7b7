"""What the parts of a model take from its features, whichever of them the feature spec has."""

import tensorflow as tf

from ctr_trainer.features.tensors import EMBEDDING, FEATURE
from ctr_trainer.layers.weights import glorot
from ctr_trainer.messages.errors import UserError


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
        tables = {table.name: ", ".join(f.name for f in table.pooled) for table in spec.tables if table.pooled}
        if not tables:
            raise UserError(f"--model={model} needs sparse features, and feature spec {spec.name!r} has none")
        raise UserError(
            f"--model={model} needs embeddings of one dim, and feature spec {spec.name!r} has several "
            f"({'; '.join(f'{name}: {of}' for name, of in tables.items())}): give all of them one with "
            f"--embedding_dim={spec.tables[0].dim}"
        )
    embeddings = features[EMBEDDING]
    if embeddings.shape[1] < fields:
        raise UserError(f"--model={model} needs {fields} sparse features or more, and there is {embeddings.shape[1]}")
    return embeddings


def all_field_embeddings(features, model):
    """As `field_embeddings`, and behind them x_m v_m for each dense feature: its value times a learned vector.

    Source: Song et al., AutoInt, CIKM 2019, equation 4.
    """
    embeddings = field_embeddings(features, model)
    if "dense" not in features:
        return embeddings
    dense, dim = features["dense"], embeddings.shape[2]
    vectors = glorot("dense_fields", [dense.shape[1], dim], dense.shape[1], dim)
    return tf.concat([embeddings, dense[:, :, None] * vectors], 1)


def named_embeddings(features, names, model):
    """-> list of float32[B, dim], the embedding of each named sparse feature.

    Raises:
      UserError: the feature spec has no such feature, or it is a dense one or a sequence.
    """
    there_are = [name.partition("/")[2] for name in features if name.startswith(f"{FEATURE}/")]
    for name in names:
        if name not in there_are:
            raise UserError(f"--model={model}: there is no sparse feature {name!r}; choose of {', '.join(there_are)}")
    return [features[f"{FEATURE}/{name}"] for name in names]
