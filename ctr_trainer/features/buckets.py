"""The keys of numbers that fall into buckets."""

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ctr_trainer.features.columns import SparseFeature, Statistics
from ctr_trainer.features.hashing import keys
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.messages.errors import UserError

if TYPE_CHECKING:  # TensorFlow takes seconds to import.
    import tensorflow as tf

BOUNDARIES = "boundaries"


class Buckets:
    """The keys of one bucketised feature.

        bucket(v) = number of boundaries <= v, as tf.raw_ops.Bucketize    key = hash(slot, bucket's number)

    A missing number has no bucket. Its key is 0, or the key of the value "" if missing values have a row.

    Args:
      feature: a bucketised `SparseFeature`.
      statistics: dict of feature name -> statistics; a feature with `quantiles` needs its `boundaries` there.

    Raises:
      UserError: a feature with `quantiles` has no boundaries.
    """

    def __init__(self, feature: SparseFeature, statistics: Statistics | None) -> None:
        boundaries = feature.buckets
        if boundaries is None:
            if statistics is None or BOUNDARIES not in statistics.get(feature.name, {}):
                raise UserError(
                    f"sparse feature {feature.name!r}: 'quantiles' needs boundaries that conversion fits to the "
                    "training data, and this data set has none; convert the data set again with this spec"
                )
            boundaries = statistics[feature.name][BOUNDARIES]
        self.boundaries = np.array(boundaries, np.float32)
        names = [str(number) for number in range(len(self.boundaries) + 1)]
        # The last key stands for a missing number.
        self.by_bucket = keys(feature.slot, pa.array([*names, ""]))
        if not feature.missing_has_row:
            self.by_bucket[-1] = 0

    def keys(self, values: np.ndarray) -> np.ndarray:
        """Returns the keys, int64[n], of float32[n]; NaN stands for a missing number."""
        buckets = np.searchsorted(self.boundaries, values, side="right")
        return self.by_bucket[np.where(np.isnan(values), len(self.by_bucket) - 1, buckets)]

    def graph_keys(self, values: "tf.Tensor") -> "tf.Tensor":
        """Computes what `keys` does by TensorFlow ops, from a float32 to an int64 tensor."""
        import tensorflow as tf

        missing = tf.fill(tf.shape(values), len(self.by_bucket) - 1)
        buckets = tf.raw_ops.Bucketize(input=values, boundaries=self.boundaries.tolist())
        return tf.gather(tf.constant(self.by_bucket), tf.where(tf.math.is_nan(values), missing, buckets))


def of_spec(spec: FeatureSpec, statistics: Statistics | None) -> dict[str, Buckets]:
    """Returns the Buckets of each bucketised feature of a spec, by feature name."""
    return {feature.name: Buckets(feature, statistics) for feature in spec.bucketised}
