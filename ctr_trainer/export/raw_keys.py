"""Raw values of sparse features as they enter an exported graph, and their keys, by stock TensorFlow operations."""

import tensorflow as tf

from ctr_trainer.export.raw_lists import RawLists
from ctr_trainer.features import hashing
from ctr_trainer.features.hashing import graph_keys
from ctr_trainer.features.tensors import EMBEDDING, LINEAR, MASK, SEQUENCE, operation_name
from ctr_trainer.features.times import graph_derived

tf1 = tf.compat.v1

# Name of the signature, and kinds of its outputs; see `key_outputs`.
SIGNATURE = "keys"
KEYS, VALUES, SPLITS, WEIGHTS = "keys", "values", "splits", "weights"


class RawKeys:
    """The raw values of a spec's sparse features, as inputs of the graph, and their keys.

    Args:
      spec, statistics: FeatureSpec and statistics that the model was trained with.

    Attributes:
      receivers: dict of feature name -> placeholder, of the features that were asked for; `receiver.ExportedFeatures`
        says their shapes.
    """

    def __init__(self, spec, statistics):
        self.receivers = {}
        self._null_values = spec.csv.null_values
        self._buckets = hashing.buckets_of(spec, statistics)
        self._lists = {}

    def receiver(self, feature, kind, shape):
        """-> the placeholder of a feature, which is made when it is first asked for."""
        if feature.name not in self.receivers:
            self.receivers[feature.name] = tf1.placeholder(kind, shape, operation_name(feature.name))
        return self.receivers[feature.name]

    def singles(self, features):
        """-> int64[B, F], the keys of single-valued features."""
        texts = [feature for feature in features if not feature.is_bucketised]
        parts = []
        if texts:
            values = [self.receiver(feature, tf.string, [None]) for feature in texts]
            parts.append(_keys_of_texts(texts, values, self._null_values))
        for feature in features:
            if feature.is_bucketised:
                values = self.receiver(feature, tf.float32, [None])
                parts.append(self._buckets[feature.name].graph_keys(values)[:, None])
        if len(parts) == 1:
            return parts[0]
        places = {feature.name: place for place, feature in enumerate(sorted(features, key=lambda f: f.is_bucketised))}
        return tf.gather(tf.concat(parts, 1), [places[feature.name] for feature in features], axis=1)

    def list(self, feature):
        """-> the `RawLists` of a bag or a sequence."""
        if feature.name not in self._lists:
            raw = self.receiver(feature, tf.string, [None, None])
            self._lists[feature.name] = RawLists(feature, raw, self._null_values)
        return self._lists[feature.name]


def key_outputs(raw, spec, read):
    """Makes the outputs of the signature `keys`: what the rows of a request are looked up by.

    B is the number of examples, F the single-valued features of a table in the spec's order, n any number.

    | output | tensor |
    |---|---|
    | `keys/dim16` | int64[B, F], the keys of the single-valued features of table `dim16`; 0 is no value |
    | `values/<name>` | int64[n], the keys of a bag or a sequence, example after example |
    | `splits/<name>` | int32[B + 1]; example b has the keys from splits[b] to splits[b + 1] |
    | `weights/<name>` | float32[n], of a bag whose values have weights |

    Args:
      raw: `RawKeys`, which gets the inputs.
      spec: FeatureSpec.
      read: names of the tower's inputs, see `row_inputs.RowInputs`: a feature that it does not read has no output.

    Returns:
      dict of output -> tensor; empty for a model without sparse features.
    """
    outputs = {}
    for table in spec.tables:
        lists = [f for f in table.sequences if not read.isdisjoint((f"{SEQUENCE}/{f.name}", f"{MASK}/{f.name}"))]
        if not read.isdisjoint((f"{EMBEDDING}/{table.name}", f"{LINEAR}/{table.name}")):
            lists += table.bags
            if table.single:
                outputs[f"{KEYS}/{table.name}"] = raw.singles(table.single)
        for feature in lists:
            outputs |= _list_outputs(feature, raw.list(feature))
    return outputs


def _list_outputs(feature, values):
    taken = tf.not_equal(values.keys, 0)
    ends = tf.cumsum(tf.reduce_sum(tf.cast(taken, tf.int32), 1))
    outputs = {
        f"{VALUES}/{feature.name}": tf.boolean_mask(values.keys, taken),
        f"{SPLITS}/{feature.name}": tf.concat([[0], ends], 0),
    }
    if feature.weight_separator is not None:
        outputs[f"{WEIGHTS}/{feature.name}"] = tf.boolean_mask(values.weights, taken)
    return outputs


def _keys_of_texts(features, values, null_values):
    """A string[B] per feature -> int64[B, F], keys. A text among the source's `null_values` counts as missing."""
    values = _without(null_values, tf.stack(values, 1))
    if any(feature.derive for feature in features):
        columns = zip(features, tf.unstack(values, axis=1), strict=True)
        values = tf.stack([graph_derived(c, f.derive) if f.derive else c for f, c in columns], 1)
    keys = graph_keys([feature.slot for feature in features], values)
    if all(feature.missing_has_row for feature in features):
        return keys
    has_row = tf.constant([feature.missing_has_row for feature in features])
    return tf.where(tf.equal(values, "") & ~has_row, tf.zeros_like(keys), keys)


def _without(null_values, values):
    for null in filter(None, null_values):
        values = tf.where(tf.equal(values, null), "", values)
    return values
