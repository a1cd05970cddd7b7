"""The training operation of the dense variables, and the gradients of the embedding rows."""

import dataclasses

import tensorflow as tf

from ctr_trainer import distributed

tf1 = tf.compat.v1

OPTIMIZERS = {
    "sgd": tf1.train.GradientDescentOptimizer,
    "adagrad": tf1.train.AdagradOptimizer,
    "adam": tf1.train.AdamOptimizer,
}


@dataclasses.dataclass(frozen=True)
class TrainOp:
    """Makes the `train_op` of a loss: dense gradients averaged over the workers, one backward pass for all.

    With K workers and `scale` = K, sqrt(K) or 1 (`linear`, `sqrt`, `none`):

        dense:  w -= scale * learning_rate * optimizer(mean over workers of g)
        rows:   see `embedding.merging`; with SGD, each worker w -= embedding_learning_rate * (scale / K) * its own g,
                and the service adds all K: a mean like that of the dense variables

    Attributes:
      optimizer: of `OPTIMIZERS`.
      learning_rate, embedding_learning_rate: of one worker.
      scale_lr: `linear`, `sqrt` or `none`.
      fp16_allreduce: send dense gradients as float16.
    """

    optimizer: str = "adagrad"
    learning_rate: float = 0.02
    embedding_learning_rate: float = 0.05
    scale_lr: str = "linear"
    fp16_allreduce: bool = False

    def __call__(self, loss, features):
        """-> the train_op; sets `features.gradients`, `features.learning_rate` and `features.learning_rate_scale`."""
        scale = distributed.lr_scale(self.scale_lr)
        learning_rate = tf.constant(scale * self.learning_rate, name="learning_rate")
        features.learning_rate = tf.constant(self.embedding_learning_rate)
        features.learning_rate_scale = scale
        rows = features.placeholders
        optimizer = distributed.optimizer(OPTIMIZERS[self.optimizer](learning_rate), rows, self.fp16_allreduce)
        gradients = optimizer.compute_gradients(loss, tf1.trainable_variables() + rows)
        own = {id(tensor) for tensor in rows}
        features.gradients = {tensor.name: g for g, tensor in gradients if id(tensor) in own and g is not None}
        dense = [(g, variable) for g, variable in gradients if id(variable) not in own and g is not None]
        return optimizer.apply_gradients(dense, global_step=tf1.train.get_or_create_global_step())
