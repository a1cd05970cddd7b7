"""Transforms of dense features by stock TensorFlow ops, the same in training and in an exported graph."""

import numpy as np
import tensorflow as tf

from ctr_trainer.messages.errors import UserError


def dense_transform(dense, spec, statistics):
    """Makes the tower's inputs from raw dense values: fill missing values, clip, then apply the feature's transform.

        none: x    log1p: sign(x) * log1p(|x|)    standardize: (x - mean) / std    minmax: (x - min) / (max - min)

    A constant feature (std 0, or max = min) becomes 0. With `minmax`, values outside the training data's range fall
    outside [0, 1] unless they are clipped.

    Args:
      dense: float32[B, n], the columns in the order of `spec.dense`, NaN for a missing value.
      spec: FeatureSpec.
      statistics: dict of feature name -> dict of `mean`, `std`, `min`, `max` of the training data's present, clipped
        values.

    Returns:
      float32[B, n].

    Raises:
      UserError: a feature that needs statistics has none.
    """
    if not spec.dense:
        return dense
    fill = np.array([f.default for f in spec.dense], np.float32)
    x = tf.where(tf.math.is_nan(dense), tf.zeros_like(dense) + fill, dense)
    if any(f.clip for f in spec.dense):
        low, high = np.transpose([f.clip or (-np.inf, np.inf) for f in spec.dense]).astype(np.float32)
        x = tf.clip_by_value(x, low, high)
    logs = np.array([f.transform == "log1p" for f in spec.dense])
    if logs.any():
        x = tf.where(tf.zeros_like(x, tf.bool) | logs, tf.sign(x) * tf.math.log1p(tf.abs(x)), x)
    shift, scale = np.transpose([_affine(f, statistics) for f in spec.dense]).astype(np.float32)
    return (x - shift) * scale if shift.any() or (scale != 1).any() else x


def _affine(feature, statistics):
    """-> (shift, scale) of a feature, for `(x - shift) * scale`."""
    if feature.transform not in ("standardize", "minmax"):
        return 0.0, 1.0
    if feature.name not in (statistics or {}):
        raise UserError(
            f"dense feature {feature.name!r}: transform {feature.transform!r} needs the training data's statistics, "
            "and this data set has none; convert the data set again with this spec"
        )
    s = statistics[feature.name]
    low, width = (s["mean"], s["std"]) if feature.transform == "standardize" else (s["min"], s["max"] - s["min"])
    return low, 1 / width if width > 0 else 0.0
