"""The warm-up file: requests that TensorFlow Serving computes when it loads a model.

The messages are from TensorFlow Serving's `prediction_log.proto`, `predict.proto` and `model.proto`, and contain only
the fields that are written. Source: https://www.tensorflow.org/tfx/serving/saved_model_warmup
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from ctr_trainer.export.ranking import CANDIDATES, COLUMNS, CONTEXT

FILE = ("assets.extra", "tf_serving_warmup_requests")
# Importing TensorFlow adds the message TensorProto to the default pool.
_PROTO = """
name: "ctr_trainer/prediction_log.proto" package: "ctr_trainer.tensorflow_serving" syntax: "proto3"
dependency: "tensorflow/core/framework/tensor.proto"
message_type {
  name: "ModelSpec"
  field { name: "name" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "signature_name" number: 3 type: TYPE_STRING label: LABEL_OPTIONAL }
}
message_type {
  name: "PredictRequest"
  nested_type {
    name: "InputsEntry"
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".tensorflow.TensorProto" label: LABEL_OPTIONAL }
    options { map_entry: true }
  }
  field { name: "model_spec" number: 1 type: TYPE_MESSAGE type_name: "ModelSpec" label: LABEL_OPTIONAL }
  field { name: "inputs" number: 2 type: TYPE_MESSAGE type_name: "PredictRequest.InputsEntry" label: LABEL_REPEATED }
}
message_type {
  name: "PredictLog"
  field { name: "request" number: 1 type: TYPE_MESSAGE type_name: "PredictRequest" label: LABEL_OPTIONAL }
}
message_type {
  name: "PredictionLog"
  field { name: "predict_log" number: 6 type: TYPE_MESSAGE type_name: "PredictLog" label: LABEL_OPTIONAL }
}
"""
_POOL = descriptor_pool.Default()
_POOL.Add(text_format.Parse(_PROTO, descriptor_pb2.FileDescriptorProto()))
PredictionLog: Any = message_factory.GetMessageClass(
    _POOL.FindMessageTypeByName("ctr_trainer.tensorflow_serving.PredictionLog")
)


def write_warmup(path: str, signatures: Mapping[str, Any]) -> None:
    """Writes one request with missing values for each signature of a SavedModel that takes Predict requests."""
    file = os.path.join(path, *FILE)
    os.makedirs(os.path.dirname(file), exist_ok=True)
    with tf.io.TFRecordWriter(file) as writer:
        for name, signature in signatures.items():
            if signature.method_name != tf.saved_model.PREDICT_METHOD_NAME:
                continue
            log = PredictionLog()
            request = log.predict_log.request
            request.model_spec.signature_name = name
            for key, info in sorted(signature.inputs.items()):
                value = tf.make_tensor_proto(_missing(key, info, signature.inputs))
                request.inputs[key].ParseFromString(value.SerializeToString())
            writer.write(log.SerializeToString(deterministic=True))


def _missing(name: str, info: Any, inputs: Mapping[str, Any]) -> np.ndarray:
    """Returns an input's value for one example. In a ranking request, the context has no rows."""
    shape = [1 if each.size < 0 else each.size for each in info.tensor_shape.dim]
    side, _, what = name.partition("/")
    if side == COLUMNS:
        return np.arange(shape[0], dtype=np.int32)
    if side in (CONTEXT, CANDIDATES) and what:
        columns = inputs[f"{COLUMNS}/{what.partition('/')[2]}"].tensor_shape.dim[0].size
        shape[1] = 0 if side == CONTEXT else columns
    dtype = tf.dtypes.as_dtype(info.dtype)
    return np.full(shape, b"", object) if dtype == tf.string else np.zeros(shape, dtype.as_numpy_dtype)
