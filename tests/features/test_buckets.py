import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from ctr_trainer.features.columns import SparseFeature
from ctr_trainer.features.hashing import Buckets, keys
from ctr_trainer.messages.errors import UserError

VALUES = np.float32([-5, 0.5, 0.7, 1, 10, 1e9, np.nan])


@pytest.mark.parametrize(("missing", "last"), [(None, [0]), ("zero", [0]), ("own", keys("slot", pa.array([""])))])
def test_a_number_has_the_key_of_its_buckets_number_in_an_exported_graph_too(missing, last):
    feature = SparseFeature("f", "f", 4, "slot", buckets=(0.5, 1, 10), missing=missing)
    wanted = [*keys("slot", pa.array(["0", "1", "1", "2", "3", "3"])), *last]
    buckets = Buckets(feature, {})
    assert buckets.keys(VALUES).tolist() == wanted
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        assert session.run(buckets.graph_keys(tf.constant(VALUES))).tolist() == wanted


def test_boundaries_of_quantiles_come_from_the_statistics():
    feature = SparseFeature("f", "f", 4, "f", quantiles=3)
    found = Buckets(feature, {"f": {"boundaries": [2.0, 3.0]}}).keys(np.float32([1, 2, 3]))
    assert found.tolist() == keys("f", pa.array(["0", "1", "2"])).tolist()
    # Where no training row had a value there is one bucket.
    assert Buckets(feature, {"f": {"boundaries": []}}).keys(np.float32([1])).tolist() == found[:1].tolist()
    with pytest.raises(UserError, match="'f'.*'quantiles' needs boundaries.*convert the data set again"):
        Buckets(feature, {"f": {"mean": 1.0}})
