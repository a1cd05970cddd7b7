"""The warm-up file of TensorFlow Serving: requests that it computes when it loads a model.

Source: https://www.tensorflow.org/tfx/serving/saved_model_warmup; the messages are those of TensorFlow Serving's
`prediction_log.proto`, `predict.proto` and `model.proto`, with the fields that are written.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from ctr_trainer.serving.export.ranking import CANDIDATES, COLUMNS, CONTEXT
from ctr_trainer.serving.export.raw_keys import SIZES

FILE = ("assets.extra", "tf_serving_warmup_requests")
_PACKAGE = "ctr_trainer.tensorflow_serving"


def _prediction_log() -> Any:
    """Returns the protobuf class of PredictionLog."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="ctr_trainer/prediction_log.proto", package=_PACKAGE, syntax="proto3"
    )
    tensor = tf.make_tensor_proto(0.0).DESCRIPTOR
    file.dependency.append(tensor.file.name)  # Importing TensorFlow adds it to the default pool.

    def add(message: str, *fields: tuple[str, int, str]) -> Any:
        made = file.message_type.add(name=message)
        for name, number, kind in fields:
            if kind == "string":
                made.field.add(name=name, number=number, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
            else:
                made.field.add(
                    name=name, number=number, type=field.TYPE_MESSAGE, type_name=kind, label=field.LABEL_OPTIONAL
                )
        return made

    add("ModelSpec", ("name", 1, "string"), ("signature_name", 3, "string"))
    request = add("PredictRequest", ("model_spec", 1, f".{_PACKAGE}.ModelSpec"))
    entry = request.nested_type.add(name="InputsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(
        name="value",
        number=2,
        type=field.TYPE_MESSAGE,
        type_name=f".{tensor.full_name}",
        label=field.LABEL_OPTIONAL,
    )
    request.field.add(
        name="inputs",
        number=2,
        type=field.TYPE_MESSAGE,
        type_name=f".{_PACKAGE}.PredictRequest.InputsEntry",
        label=field.LABEL_REPEATED,
    )
    add("PredictLog", ("request", 1, f".{_PACKAGE}.PredictRequest"))
    add("PredictionLog", ("predict_log", 6, f".{_PACKAGE}.PredictLog"))
    pool = descriptor_pool.Default()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.PredictionLog"))


PredictionLog = _prediction_log()


def write_warmup(path: str, signatures: Mapping[str, Any]) -> None:
    """Writes one request of missing values for each signature of a SavedModel.

    Args:
      path: directory of the SavedModel.
      signatures: its SignatureDefs by name. Only those for Predict requests get a request.
    """
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
    """Returns the value of an input for one example; in a request for ranking, the context has no rows."""
    shape = [1 if each.size < 0 else each.size for each in info.tensor_shape.dim]
    side, _, what = name.partition("/")
    if side == COLUMNS:
        return np.arange(shape[0], dtype=np.int32)
    if side == SIZES and what:
        return np.eye(1, shape[0], dtype=np.int32)[0]
    if side in (CONTEXT, CANDIDATES) and what:
        columns = inputs[f"{COLUMNS}/{what.partition('/')[2]}"].tensor_shape.dim[0].size
        shape[1] = 0 if side == CONTEXT else columns
    dtype = tf.dtypes.as_dtype(info.dtype)
    return np.full(shape, b"", object) if dtype == tf.string else np.zeros(shape, dtype.as_numpy_dtype)
