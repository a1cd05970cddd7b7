"""The dense tower of a model that is trained: one SavedModel after the other, of the same graph."""

import os

import tensorflow as tf

from ctr_trainer.export.receivers import RowInputs
from ctr_trainer.export.saved_model import build, keys_signature, signatures_of, write_spec
from ctr_trainer.files.local_path import LocalPath
from ctr_trainer.files.temporary import temporary_directory

tf1 = tf.compat.v1
_VARIABLES = "variables"


class DenseTower:
    """Writes what `export` writes with `--export_rows=none`, in milliseconds: the graph is made once.

    Args:
      model_fn, params: as for `Estimator`.
      trained_features: (FeatureSpec, statistics) of the model.

    Attributes:
      variables: by name (shape, dtype) of each variable of the tower, among them the global step.
    """

    def __init__(self, model_fn, params, trained_features):
        with temporary_directory() as directory:
            draft = os.path.join(directory, "tower")
            self.variables = _export(draft, model_fn, params, trained_features)
            write_spec(draft, *trained_features)
            names = [name for name in LocalPath(draft).files() if not name.startswith(f"{_VARIABLES}{os.sep}")]
            self._files = {name: (LocalPath(draft) / name).read_bytes() for name in names}
        self._graph = tf.Graph()
        with self._graph.as_default(), tf.device("/cpu:0"):
            self._prefix = tf1.placeholder(tf.string, [])
            self._fed = {name: tf1.placeholder(dtype, shape) for name, (shape, dtype) in self.variables.items()}
            names = list(self._fed)
            everywhere = [""] * len(names)
            self._save = tf.raw_ops.SaveV2(
                prefix=self._prefix, tensor_names=names, shape_and_slices=everywhere, tensors=list(self._fed.values())
            )
        self._session = tf1.Session(graph=self._graph, config=tf1.ConfigProto(device_count={"GPU": 0}))

    def write(self, path, values):
        """Writes the SavedModel of some values of the variables.

        Args:
          path: local directory, empty or not there yet.
          values: by name, the array of each variable.
        """
        prefix = os.path.join(path, _VARIABLES, _VARIABLES)
        os.makedirs(os.path.dirname(prefix), exist_ok=True)
        fed = {self._fed[name]: values[name] for name in self._fed}
        self._session.run(self._save, {self._prefix: prefix, **fed})
        for name, content in self._files.items():
            file = LocalPath(path) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("xb") as stream:
                stream.write(content)

    def close(self):
        """Ends its session."""
        self._session.close()


def _export(path, model_fn, params, trained_features):
    """Writes a SavedModel whose variables have values that do not count. -> by name (shape, dtype) of each variable."""
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        features = RowInputs(*trained_features)
        signatures = signatures_of(model_fn, params, features, features.receivers)
        signatures |= keys_signature(trained_features, features.receivers)
        variables = tf1.global_variables()
        with tf1.Session(config=tf1.ConfigProto(device_count={"GPU": 0})) as session:
            session.run(tf1.global_variables_initializer())
            build(path, session, signatures, tf1.train.Saver())
        return {each.op.name: (each.shape, each.dtype.base_dtype) for each in variables}
