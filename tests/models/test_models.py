"""Every model, and every variant of one, from its first step to its export.

Its losses are compared with those on record, see tests/golden; the training of the first variant of each model is
interrupted half-way, where that of the record was not.
"""

import csv

import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import roc_auc_score

from ctr_trainer.data.reader import open_dataset
from ctr_trainer.models.registry import MODELS
from tests import golden
from tests.models import every

tf1 = tf.compat.v1
# With oneDNN or without, with AVX-512, AVX2 or SSE4.1, no loss differs by more than 6e-7; dense learning rates larger
# by a thousandth change some loss of every model by more than 1e-5.
RELATIVE_TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return golden.make_data(tmp_path_factory.mktemp("models"))


def _rows(data):
    with open(data.parent / "rows.csv") as file:
        return list(csv.DictReader(file))


def _labels(data):
    """Returns the labels of the rows, by the suffix of a prediction's name, which is "" for one label."""
    clicked, bought = ([row[name] in ("1", "yes") for row in _rows(data)] for name in ("clicked", "order"))
    return {"": clicked, "/clicked": clicked, "/bought": bought}


def _raw_values(data):
    """Returns the data set's raw values as inputs of an exported graph, by feature."""
    spec, rows, values = open_dataset(data).spec, _rows(data), {}
    for feature in (*spec.dense, *spec.bucketised):
        values[feature.name] = np.float32([row[feature.column] or "nan" for row in rows])
    for feature in spec.sparse:
        texts = [row[feature.column] for row in rows]
        if feature.combiner is not None:
            lists = [text.split(feature.separator) if text else [] for text in texts]
            texts = [each + [""] * (max(map(len, lists)) - len(each)) for each in lists]
        values.setdefault(feature.name, texts)
    return values


def _served(path, values):
    """What an exported graph, of stock operations only, answers for those of the values that it asks for."""
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        signature = tf1.saved_model.load(session, [tf.saved_model.SERVING], path).signature_def["serving_default"]
        assert not [op.type for op in graph.get_operations() if "PyFunc" in op.type]
        feed = {tensor.name: values[name] for name, tensor in signature.inputs.items()}
        return session.run({name: tensor.name for name, tensor in signature.outputs.items()}, feed)


@pytest.mark.parametrize("name", every.VARIANTS)
def test_trains_with_the_losses_on_record_resumes_evaluates_and_exports(name, data, tmp_path):
    estimator, losses = golden.make_estimator(name, tmp_path / "model")
    # The first variant of each model is interrupted: a training resumes alike, whatever the settings of its model.
    resumes = name == next(iter(every.variants(name.partition("-")[0])))
    for last in [golden.STEPS // 2] * resumes + [golden.STEPS]:
        estimator.train(lambda position: golden.reader(name, data, position), hooks=[losses], max_steps=last)
    np.testing.assert_allclose(losses.values, golden.load(name), rtol=RELATIVE_TOLERANCE, atol=0)

    own = data[every.labels(name)]
    predicted = every.probabilities(list(estimator.predict(lambda: every.once(name, own))))
    metrics = estimator.evaluate(lambda: every.once(name, own))
    assert (metrics["examples"], metrics["global_step"]) == (golden.ROWS, golden.STEPS)
    truth = _labels(own)
    for key, values in predicted.items():
        assert values.std() > 0.001, key  # different rows get different predictions
        label = key.removeprefix("probabilities")
        assert metrics[f"auc{label}"] == pytest.approx(roc_auc_score(truth[label], values), abs=1e-3)

    served = every.probabilities(_served(estimator.export_to(tmp_path / "export"), _raw_values(own)))
    assert served.keys() == predicted.keys()
    for key, values in predicted.items():
        np.testing.assert_allclose(served[key], values, atol=1e-6, rtol=0, err_msg=key)


def test_every_models_losses_are_on_record_and_fall():
    assert {path.stem for path in golden.path("lr").parent.glob("*.json")} == set(MODELS)
    epoch = -(-golden.ROWS // 32)
    for name in every.VARIANTS:
        losses = golden.load(name)
        assert len(losses) == golden.STEPS
        assert np.mean(losses[-epoch:]) < np.mean(losses[:epoch]), name
