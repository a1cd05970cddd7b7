"""Every model's scores of one context with candidates against those of the expanded rows, for every kind of feature."""

import types

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.serving.export.warmup import FILE, PredictionLog
from ctr_trainer.serving.scoring import served_model
from ctr_trainer.serving.scoring.request_forms import of_candidates, of_instances
from ctr_trainer.serving.scoring.tower import Tower
from ctr_trainer.settings.command_flags import ScoreLimits
from tests import golden
from tests.models import every
from tests.models.test_models import _raw_values

tf1 = tf.compat.v1
COUNT = 7
SPLITS = {
    "most": ("user", "place", "device", "price", "age", "age_group", "tags", "words", "history"),
    "few": ("item", "price_level", "topics"),
    "none": (),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return golden.make_data(tmp_path_factory.mktemp("ranked"))


def _run(session, signature, values):
    feed = {tensor.name: values[name] for name, tensor in signature.inputs.items()}
    return session.run({name: tensor.name for name, tensor in signature.outputs.items()}, feed)


def _rows(table, keys):
    """Returns the rows of a table; each row is a function of its key."""
    width = int(table.removeprefix("dim")) + 1
    return np.sin(keys[:, None] % 1000 * np.arange(1.0, width + 1)).astype(np.float32) / 3


def _instances(raw):
    """Returns the examples in row format."""
    texts = {
        name: [[text for text in each if text] for each in values.tolist()]
        for name, values in raw.items()
        if values.ndim == 2
    }
    numbers = {
        name: [None if np.isnan(v) else v for v in values.tolist()]
        for name, values in raw.items()
        if values.dtype.kind == "f"
    }
    columns = {**{name: values.tolist() for name, values in raw.items()}, **texts, **numbers}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _assert_equal(found, expected, what):
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        np.testing.assert_allclose(found[key], values, atol=1e-6, rtol=1e-6, err_msg=f"{key}, {what}")


@pytest.mark.parametrize("name", every.VARIANTS)
def test_a_context_with_candidates_gets_the_scores_of_the_expanded_rows(name, data, tmp_path):
    own = data[every.labels(name)]
    estimator, _ = golden.make_estimator(name, tmp_path / "model")
    estimator.train(lambda: golden.reader(name, data), max_steps=5)
    raw = {name: np.array(values)[:COUNT] for name, values in _raw_values(own).items()}
    _of_raw_values(estimator.export_to(tmp_path / "export"), raw)
    tower = estimator.export_to(tmp_path / "tower", rows="none")
    _of_rows(Tower(tower), _instances(raw))
    with tf.Graph().as_default(), tf1.Session() as session:
        signatures = tf1.saved_model.load(session, [tf.saved_model.SERVING], tower).signature_def
        _warm_up(session, tower, signatures, {"serving_default", "keys", "ranking", "ranking_keys"})


def _of_raw_values(path, raw):
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        signatures = tf1.saved_model.load(session, [tf.saved_model.SERVING], path).signature_def
        assert not [op.type for op in graph.get_operations() if "PyFunc" in op.type]
        for split, context in SPLITS.items():
            ranked = {each: values[:1] if each in context else values for each, values in raw.items()}
            expanded = {each: np.repeat(values, COUNT // len(values), 0) for each, values in ranked.items()}
            expected = _run(session, signatures["serving_default"], expanded)
            _assert_equal(_run(session, signatures["ranking"], ranked), expected, split)
        assert np.ptp(next(iter(expected.values()))) > 0  # different rows get different scores
        wrong = {each: values[:2] if each in SPLITS["few"] else values for each, values in raw.items()}
        with pytest.raises(tf.errors.InvalidArgumentError, match="ranking request gives 1 value"):
            _run(session, signatures["ranking"], wrong)
        _warm_up(session, path, signatures, {"serving_default", "ranking"})


def _warm_up(session, path, signatures, names):
    """Answers the requests of the warm-up file as TensorFlow Serving does: one for each signature."""
    logs = [PredictionLog.FromString(each) for each in tf1.io.tf_record_iterator("/".join((path, *FILE)))]
    requests = [log.predict_log.request for log in logs]
    assert {each.model_spec.signature_name for each in requests} == names == signatures.keys()
    for request in requests:
        given = {
            key: tf.make_ndarray(tf1.make_tensor_proto(0.0).FromString(value.SerializeToString()))
            for key, value in request.inputs.items()
        }
        found = _run(session, signatures[request.model_spec.signature_name], given)
        assert all(np.isfinite(values).all() for values in found.values() if values.dtype.kind == "f")


def _of_rows(tower, instances):
    reader, limits = types.SimpleNamespace(read=_rows), ScoreLimits()
    assert tower.ranks
    for split, context in SPLITS.items():
        shared = {each: instances[0][each] for each in context}
        candidates = [{each: v for each, v in instance.items() if each not in context} for instance in instances]
        ranked = of_candidates(tower.inputs, shared, candidates, limits)
        expanded = of_instances(tower.inputs, [{**shared, **each} for each in candidates], limits)
        expected, found = (served_model._score(tower, reader, each, None) for each in (expanded, ranked))
        _assert_equal(found.outputs, expected.outputs, split)
        assert found.distinct_keys == expected.distinct_keys
        _assert_equal(served_model._score(tower, reader, ranked.expanded(), None).outputs, expected.outputs, split)
    tower.close()
