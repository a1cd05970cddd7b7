"""Second-order interactions with a vector for each field that a feature meets."""

from collections.abc import Callable

import tensorflow as tf


@tf.custom_gradient
def ffm(vectors: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """Sums, over all pairs of fields, the dot product of the vectors that the two fields have for each other.

        sum_{i<j} <v_{i,j}, v_{j,i}>

    Its gradient is `d/dv_ij = v_ji`, and 0 for i = j.

    Args:
      vectors: float32[B, F, F, k]; v_ij is the vector of field i's feature for field j.

    Returns:
      float32[B, 1].

    Advice: small k, 2 to 4: each feature has F vectors, so the rows take F times the memory of `fm`.

    Example:
      >>> ffm(tf.constant([[[[9.0], [2.0]], [[5.0], [9.0]]]])).eval()  # 2 * 5; the 9s are of a field with itself
      array([[10.]], dtype=float32)

    Source: Juan et al., Field-aware Factorization Machines for CTR Prediction, RecSys 2016, section 3.
    """
    count = vectors.shape.as_list()[1]
    others = (1.0 - tf.eye(count))[:, :, None]
    mirrored = tf.transpose(vectors, [0, 2, 1, 3]) * others

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        return mirrored * upstream[..., None, None]

    return 0.5 * tf.reduce_sum(vectors * mirrored, [1, 2, 3])[:, None], gradient
