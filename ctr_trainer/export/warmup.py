"""The warm-up file: requests that TensorFlow Serving computes when it loads a model.

A request is a message of TensorFlow Serving's `prediction_log.proto`, `predict.proto` and `model.proto`, which is
encoded here because TensorFlow does not have them. All fields that are written are texts or messages.

Source: https://www.tensorflow.org/tfx/serving/saved_model_warmup
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from ctr_trainer.export.ranking import CANDIDATES, COLUMNS, CONTEXT

FILE = ("assets.extra", "tf_serving_warmup_requests")


def write_warmup(path: str, signatures: Mapping[str, Any]) -> None:
    """Writes one request with missing values for each signature of a SavedModel that takes Predict requests."""
    file = os.path.join(path, *FILE)
    os.makedirs(os.path.dirname(file), exist_ok=True)
    with tf.io.TFRecordWriter(file) as writer:
        for name, signature in signatures.items():
            if signature.method_name != tf.saved_model.PREDICT_METHOD_NAME:
                continue
            request = _field(1, _field(3, name.encode()))  # PredictRequest.model_spec.signature_name
            for key, info in sorted(signature.inputs.items()):
                value = tf.make_tensor_proto(_missing(key, info, signature.inputs))
                # An entry of the map PredictRequest.inputs.
                request += _field(2, _field(1, key.encode()) + _field(2, value.SerializeToString()))
            writer.write(_field(6, _field(1, request)))  # PredictionLog.predict_log.request


def _field(number: int, content: bytes) -> bytes:
    """Returns a field of a protobuf message: its number and wire type, the length of its content, and the content."""
    length, size = bytearray(), len(content)
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + content


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
