"""Exports without rows, for publications: the graph is made once, each export writes the values of its variables."""

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.serving.export.ranking import NotRankable, RankedRows, ranking_signatures
from ctr_trainer.serving.export.receivers import RowInputs
from ctr_trainer.serving.export.saved_model import TrainedFeatures, build, keys_signature, signatures_of, write_spec
from ctr_trainer.serving.export.warmup import write_warmup
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.files.temporary import temporary_directory

_log = logging.getLogger(__name__)
_VARIABLES = "variables"


class DenseTower:
    """Writes exports without rows (`rows="none"`) in milliseconds each, because the graph is made only once.

    Args:
      model_fn, params: see `Estimator`.
      trained_features: (FeatureSpec, statistics) of the model.

    Attributes:
      variables: (shape, dtype) of each variable of the tower by name, including the global step.
    """

    def __init__(self, model_fn: Callable[..., Any], params: Any, trained_features: TrainedFeatures) -> None:
        with temporary_directory() as parent:
            draft = os.path.join(parent, "tower")
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

    def write(self, path: str | os.PathLike[str], values: Mapping[str, np.ndarray]) -> None:
        """Writes the SavedModel with the given values of the variables.

        Args:
          path: local directory, empty or absent.
          values: array of each variable by name.
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

    def close(self) -> None:
        """Closes the session."""
        self._session.close()


def _export(
    path: str, model_fn: Callable[..., Any], params: Any, trained_features: TrainedFeatures, ranks: bool = True
) -> dict[str, tuple[tf.TensorShape, tf.DType]]:
    """Writes a SavedModel with arbitrary values of the variables. Returns (shape, dtype) of each variable by name."""
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        features = RowInputs(*trained_features)
        signatures = signatures_of(model_fn, params, features, features.receivers)
        signatures |= keys_signature(trained_features, features.receivers)
        if ranks:
            try:
                ranked = RankedRows(*trained_features, features.receivers)
                signatures |= ranking_signatures(model_fn, params, ranked)
            except NotRankable as error:
                _log.warning("exported without the signature for ranking: %s", error)
                return _export(path, model_fn, params, trained_features, ranks=False)
        variables = tf1.global_variables()
        with tf1.Session(config=tf1.ConfigProto(device_count={"GPU": 0})) as session:
            session.run(tf1.global_variables_initializer())
            build(path, session, signatures, tf1.train.Saver())
        write_warmup(path, signatures)
        return {each.op.name: (each.shape, each.dtype.base_dtype) for each in variables}
