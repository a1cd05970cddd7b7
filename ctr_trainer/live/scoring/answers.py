"""The contents of answers: predictions and metadata, in TensorFlow Serving's REST form, or predictions as Arrow.

Source: https://www.tensorflow.org/tfx/serving/api_rest
"""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from ctr_trainer.export.raw_inputs import NUMBER
from ctr_trainer.live.scoring.refusals import RequestRefused
from ctr_trainer.live.scoring.request_forms import SIGNATURE, Form
from ctr_trainer.live.scoring.served_model import ServedModel


def predictions(outputs: Mapping[str, np.ndarray], form: Form) -> bytes:
    """Returns predictions as JSON or Arrow. As in TensorFlow Serving, a single output in JSON has no name.

    A float32 has the fewest digits from which a reader recovers the same float32.
    """
    found: object
    values = {name: _values(array) for name, array in sorted(outputs.items())}
    if form is Form.ARROW:
        columns = {name: v.tolist() if isinstance(v, np.ndarray) and v.ndim > 1 else v for name, v in values.items()}
        batch, sink = pa.record_batch({name: pa.array(each) for name, each in columns.items()}), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        return sink.getvalue().to_pybytes()
    if len(values) == 1:
        (found,) = values.values()
    elif form is Form.ROWS:
        found = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    else:
        found = values
    found = {"predictions" if form is Form.ROWS else "outputs": found}
    return orjson.dumps(found, option=orjson.OPT_SERIALIZE_NUMPY)


def _values(array: np.ndarray) -> np.ndarray | list[Any]:
    if array.dtype == object:
        return np.vectorize(_text, [object])(array).tolist()
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise RequestRefused("a prediction is not a finite number: the model has diverged", status=500)
    return np.ascontiguousarray(array)


def _text(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode()}


def metadata(name: str, model: ServedModel) -> dict[str, Any]:
    """Returns the `metadata` of TensorFlow Serving's REST API, and the values that the page shows."""
    tower, now = model.tower, model.freshness
    typical = {f.column: tower.typical[f.name] for f in tower.spec.sparse if f.name in tower.typical}
    columns = [
        {
            "name": each.name,
            "kind": each.kind,
            "expected": each.expected,
            "separator": each.separator or "",
            "typical": typical.get(each.name),
        }
        for each in tower.inputs.columns
    ]
    inputs = {
        each.name: _tensor("DT_FLOAT" if each.kind == NUMBER else "DT_STRING", each.is_list)
        for each in tower.inputs.columns
    }
    outputs = {each: _tensor("DT_FLOAT", False) for each in tower.outputs}
    signature = {"inputs": inputs, "outputs": outputs, "method_name": "tensorflow/serving/predict"}
    return {
        "model_spec": {"name": name, "signature_name": "", "version": str(now.epoch)},
        "metadata": {"signature_def": {"signature_def": {SIGNATURE: signature}}},
        "columns": columns,
        "outputs": list(tower.outputs),
        "freshness": now.to_dict(),
    }


def _tensor(dtype: str, is_list: bool) -> dict[str, Any]:
    return {"dtype": dtype, "tensor_shape": {"dim": [{"size": "-1"}] * (1 + is_list), "unknown_rank": False}}
