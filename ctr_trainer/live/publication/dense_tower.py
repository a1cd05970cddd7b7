"""The dense tower of a model in training: a SavedModel without rows, which is written again with each publication."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1
from tensorflow.core.protobuf import saved_model_pb2

from ctr_trainer.embedding.worker.new_keys import NewKeys
from ctr_trainer.export import saved_model
from ctr_trainer.export.saved_model import TrainedFeatures
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.live.publication.raw_inputs import RawInputs
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.files.temporary import temporary_directory

_VARIABLES = "variables"


class DenseTower:
    """Writes exports without rows (`rows="none"`) in milliseconds each, because the graph is made only once.

    Attributes:
      variables: dict of variable name -> (shape, dtype) of the tower's variables, including the global step.
      inputs: see `Record`.
    """

    def __init__(
        self, model_fn: Callable[..., Any], params: Any, trained_features: TrainedFeatures, new_keys: NewKeys
    ) -> None:
        self._trained_features, self._new_keys = trained_features, new_keys
        with temporary_directory() as parent:
            draft = os.path.join(parent, "tower")
            self.variables = saved_model.write_tower(draft, model_fn, params, trained_features)
            self.inputs = inputs_of(draft, trained_features[0])
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
        """Writes the SavedModel with the given variable values to a local directory, which must be empty or absent."""
        prefix = os.path.join(path, _VARIABLES, _VARIABLES)
        os.makedirs(os.path.dirname(prefix), exist_ok=True)
        fed = {self._fed[name]: values[name] for name in self._fed}
        self._session.run(self._save, {self._prefix: prefix, **fed})
        for name, content in self._files.items():
            file = LocalPath(path) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("xb") as stream:
                stream.write(content)
        saved_model.write_spec(path, *self._trained_features, self._new_keys.in_training)


def inputs_of(tower: str, spec: FeatureSpec) -> dict[str, str]:
    """Returns `Record.inputs` of an exported tower."""
    found = saved_model_pb2.SavedModel.FromString((LocalPath(tower) / "saved_model.pb").read_bytes())
    names = {name for each in found.meta_graphs[0].signature_def.values() for name in each.inputs}
    return RawInputs.of(spec, names).by_name()
