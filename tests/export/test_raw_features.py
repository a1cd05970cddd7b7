"""Features whose raw values an export has to read itself: times, and lists in brackets."""

import numpy as np
import tensorflow as tf

from ctr_trainer.data.convert import convert
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.estimator import Estimator, RunConfig
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.models import lr
from ctr_trainer.models.params import ModelParams
from ctr_trainer.ranks import distributed
from ctr_trainer.serving.export.saved_model_evaluation import read_raw

tf1 = tf.compat.v1
SPEC = FeatureSpec.from_dict(
    {
        "name": "raw",
        "label": {"column": "y"},
        "csv": {"null_values": ["", "-"]},
        "sparse": [
            {"name": "hour", "column": "at", "dim": 2, "derive": "hour"},
            {"name": "weekday", "column": "at", "dim": 2, "derive": "weekday", "missing": "zero"},
            {"name": "weekend", "column": "at", "dim": 2, "derive": "weekend"},
            {"name": "level", "column": "count", "dim": 2, "derive": "log_squared"},
            {"name": "tags", "dim": 2, "combiner": "sum", "brackets": True},
        ],
    }
)
FORMS = (
    "2024-01-{day:02} {hour:02}:30:00",
    "2024-01-{day:02}T{hour:02}:59:59.9+01:00",
    "170{day:02}00{hour:02}0",
    "-",
    "",
)
COUNTS = ("-", "-1", "0", "4", "1000", "12.0")


def test_an_export_gives_predicts_numbers_of_raw_times_and_lists(tmp_path):
    distributed.init()
    rng, lines = np.random.default_rng(0), []
    for i in range(300):
        day, hour = int(rng.integers(1, 29)), int(rng.integers(0, 24))
        tags = [f"t{tag}" for tag in rng.integers(0, 9, rng.integers(0, 4))]
        at = FORMS[i % 5].format(day=day, hour=hour)
        lines.append(f'{hour // 12 ^ (day % 7 > 4)},{at},{COUNTS[i % 6]},"{tags}"\n')
    (tmp_path / "a.csv").write_text("y,at,count,tags\n" + "".join(lines))
    convert("csv", tmp_path / "a.csv", tmp_path / "data", SPEC, progress=False)
    params = ModelParams(TrainOp("adagrad", 0.1, 0.5), hidden_units=(4,))
    estimator = Estimator(lr.model_fn, tmp_path / "model", params, RunConfig(threads=1))
    estimator.train(lambda: BatchReader(tmp_path / "data", 32, epochs=3))
    predicted = estimator.predict(lambda: BatchReader(tmp_path / "data", 32, shuffle=False, epochs=1))
    expected = np.array([example["probabilities"] for example in predicted])
    path = estimator.export_to(tmp_path / "export")
    (raw,) = read_raw("csv", tmp_path / "a.csv", SPEC, 300)
    assert "".join(sorted({value.decode() for value in raw.inputs["tags"].ravel()})) == "t0t1t2t3t4t5t6t7t8"
    with tf.Graph().as_default(), tf1.Session() as session:
        signature = tf1.saved_model.load(session, ["serve"], path).signature_def["serving_default"]
        feed = {signature.inputs[name].name: values for name, values in raw.inputs.items()}
        served = session.run(signature.outputs["probabilities"].name, feed)
    np.testing.assert_allclose(served, expected, atol=1e-6, rtol=0)
    assert expected.std() > 0.02
