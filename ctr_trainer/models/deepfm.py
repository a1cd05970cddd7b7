"""DeepFM: a factorization machine and a deep network over the same embeddings."""

import tensorflow as tf

from ctr_trainer.estimator_spec import ModeKeys
from ctr_trainer.layers.fm import fm
from ctr_trainer.layers.linear import linear
from ctr_trainer.layers.mlp import dense, mlp
from ctr_trainer.models.head import binary_head


def model_fn(features, labels, mode, params):
    """`p = sigmoid(linear + fm(e) + mlp([e_1, ..., e_F, x]))`.

    Source: Guo et al., DeepFM: A Factorization-Machine based Neural Network for CTR Prediction, IJCAI 2017, section 2.
    """
    embeddings = features["embedding"]
    _, count, dim = embeddings.shape
    inputs = [tf.reshape(embeddings, [-1, count * dim])]
    if "dense" in features:
        inputs.append(features["dense"])
    training = mode == ModeKeys.TRAIN
    deep = mlp(inputs, params.hidden_units, params.dropout, training, batch_norm=params.batch_norm)
    logits = linear(features) + fm(embeddings) + dense(deep, 1, "logits")
    return binary_head(features, labels, mode, params, logits)
