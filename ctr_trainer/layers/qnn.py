"""The layer of QNN-alpha: the input, multiplied by rectified linear maps of itself."""

import tensorflow as tf

from ctr_trainer.layers.mlp import dense


def quadratic(inputs: tf.Tensor, rows: int, dropout: float = 0.0, name: str = "quadratic") -> tf.Tensor:
    """Computes `x * sum_r relu(W_r x + b_r) + x`, the Khatri-Rao product of x and r rows, summed over the rows.

    Args:
      inputs: x, float32[B, n].
      rows: number of maps W_r, float32[n, n].
      dropout: fraction of the rectified values that are set to zero; 0 unless training.
      name: name of the variable scope.

    Returns:
      float32[B, n].

    Advice: two rows; the cost is of as many full cross layers.

    Example:
      >>> quadratic(tf.ones([2, 8]), rows=2).shape
      TensorShape([2, 8])

    Source: Li et al., Revisiting Feature Interactions from the Perspective of Quadratic Neural Networks for
    Click-through Rate Prediction, KDD 2025; the authors' neuron type T26 with one head.
    """
    width = inputs.shape.as_list()[1]
    hidden = tf.nn.relu(dense(inputs, rows * width, name))
    hidden = tf.nn.dropout(hidden, rate=dropout) if dropout else hidden
    return inputs * tf.reduce_sum(tf.reshape(hidden, [-1, rows, width]), 1) + inputs
