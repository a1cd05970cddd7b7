"""Keys of lists of raw values inside an exported graph, by the rules of `data/lists.py`."""

import re

import tensorflow as tf

from ctr_trainer.features.hashing import graph_keys


class RawLists:
    """The keys and weights of the values of one bag or sequence.

    Args:
      feature: SparseFeature with a combiner.
      values: string[B, N]; "" is no value, at any place.
      null_values: texts that mean "no value" if one is the only text of a row, as in a field of the source.

    Attributes:
      keys: int64[B, N'], the keys of the values; 0 for no value, and for values beyond the feature's `max_length`.
      weights: float32[B, N'], the weights of the keys that are not 0.
    """

    def __init__(self, feature, values, null_values=()):
        self._feature = feature
        alone = tf.equal(tf.reduce_sum(_number(tf.not_equal(values, "")), 1, keepdims=True), 1)
        for null in filter(None, null_values):
            values = tf.where(alone & tf.equal(values, null), tf.fill(tf.shape(values), ""), values)
        weights = tf.ones_like(values, tf.float32)
        if feature.weight_separator is not None:
            values, weights = _weighted(values, feature.weight_separator)
        taken = tf.not_equal(values, "")
        if feature.max_length:
            last = feature.keeps_last
            rank = tf.cumsum(_number(taken), 1, reverse=last)
            taken &= rank <= feature.max_length
        keys = graph_keys(feature.slot, values)
        self.keys, self.weights = tf.where(taken, keys, tf.zeros_like(keys)), weights
        if feature.missing_has_row:
            self._append_missing(taken)

    def coefficients(self):
        """-> float32[B, N'], the factor of each value's embedding in the bag; see `embedding/worker/lookup.py`."""
        weights = tf.where(tf.not_equal(self.keys, 0), self.weights, tf.zeros_like(self.weights))
        if self._feature.combiner == "mean":
            return tf.math.divide_no_nan(weights, tf.reduce_sum(weights, 1, keepdims=True))
        if self._feature.combiner == "sqrtn":
            return tf.math.divide_no_nan(weights, tf.sqrt(tf.reduce_sum(tf.square(weights), 1, keepdims=True)))
        return weights

    def aligned(self):
        """-> int64[B, max_length], the keys in order, then 0."""
        taken = tf.not_equal(self.keys, 0)
        at = tf.where(taken)
        place = tf.gather_nd(tf.cumsum(_number(taken), 1, exclusive=True), at)
        where = tf.stack([at[:, 0], tf.cast(place, tf.int64)], 1)
        shape = tf.stack([tf.shape(self.keys, tf.int64)[0], self._feature.max_length])
        keys = tf.scatter_nd(where, tf.gather_nd(self.keys, at), shape)
        return tf.ensure_shape(keys, [None, self._feature.max_length])

    def _append_missing(self, taken):
        """Adds the key of the value "" to the rows without values."""
        own = graph_keys(self._feature.slot, tf.constant([""]))
        own = tf.where(tf.reduce_any(taken, 1, keepdims=True), tf.zeros_like(own), own)
        self.keys = tf.concat([self.keys, own], 1)
        self.weights = tf.concat([self.weights, tf.ones_like(own, tf.float32)], 1)


def _weighted(values, separator):
    """-> (values string[B, N], weights float32[B, N], 1 for a value without weight); the last separator counts."""
    # \\C matches any byte, because texts need not be UTF-8.
    before, after = rf"^(\C*){re.escape(separator)}\C*$", rf"^\C*{re.escape(separator)}(\C*)$"
    has_weight = tf.strings.regex_full_match(values, after)
    texts = tf.where(has_weight, tf.strings.regex_replace(values, after, r"\1"), tf.fill(tf.shape(values), "1"))
    return tf.strings.regex_replace(values, before, r"\1"), tf.strings.to_number(texts)


def _number(mask):
    return tf.cast(mask, tf.int32)
