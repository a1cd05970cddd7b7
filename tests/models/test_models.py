"""Every model, and every variant of one, from its first step to its export.

Its losses are compared with those on record, see tests/golden; the training is interrupted half-way where that of the
record was not.
"""

import csv

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.data.reader import open_dataset
from ctr_trainer.models.registry import MODELS
from tests import golden
from tests.models import every

# Without oneDNN, or with AVX2 in place of AVX-512, the losses differ by up to 5e-6; a learning rate that is larger by a
# thousandth changes each model's by 1e-4 or more.
RELATIVE_TOLERANCE = 3e-5


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return golden.make_data(tmp_path_factory.mktemp("models"))


def _raw_values(data):
    """-> the data set's raw values as the inputs of an exported graph, by feature."""
    spec = open_dataset(data).spec
    with open(data.parent / "rows.csv") as file:
        rows = list(csv.DictReader(file))
    values = {}
    for feature in (*spec.dense, *spec.bucketised):
        values[feature.name] = np.float32([row[feature.column] or "nan" for row in rows])
    for feature in spec.sparse:
        texts = [row[feature.column] for row in rows]
        if feature.combiner is not None:
            lists = [text.split(feature.separator) if text else [] for text in texts]
            texts = [each + [""] * (max(map(len, lists)) - len(each)) for each in lists]
        values.setdefault(feature.name, texts)
    return {name: tf.constant(value) for name, value in values.items()}


@pytest.mark.parametrize("name", every.VARIANTS)
def test_trains_with_the_losses_on_record_resumes_evaluates_and_exports(name, data, tmp_path):
    estimator, losses = golden.make_estimator(name, tmp_path / "model")
    for last in (golden.STEPS // 2, golden.STEPS):
        estimator.train(lambda position: golden.reader(name, data, position), hooks=[losses], max_steps=last)
    np.testing.assert_allclose(losses.values, golden.load(name), rtol=RELATIVE_TOLERANCE, atol=0)

    own = data[every.labels(name)]
    metrics = estimator.evaluate(lambda: every.once(name, own))
    assert (metrics["examples"], metrics["global_step"]) == (golden.ROWS, golden.STEPS)
    assert max(value for key, value in metrics.items() if key.startswith("auc")) > 0.55

    predicted = every.probabilities(list(estimator.predict(lambda: every.once(name, own))))
    assert predicted.std() > 0.001  # different rows get different predictions
    exported = tf.saved_model.load(estimator.export_to(tmp_path / "export")).signatures["serving_default"]
    assert not [op.type for op in exported.graph.get_operations() if "PyFunc" in op.type]
    served = exported(**_raw_values(own))
    served = np.concatenate([served[key].numpy() for key in sorted(served) if key.startswith("probabilities")])
    np.testing.assert_allclose(served, predicted, atol=1e-6, rtol=0)


def test_every_models_losses_are_on_record_and_fall():
    assert {path.stem for path in golden.path("lr").parent.glob("*.json")} == set(MODELS)
    for name in every.VARIANTS:
        losses = golden.load(name)
        assert len(losses) == golden.STEPS
        assert np.mean(losses[-10:]) < np.mean(losses[:10]), name
