"""Every model, and every variant of one, from its first step to its export and its ranking.

Its losses are compared with those on record, see tests/golden. Some variants are evaluated too, and their training is
interrupted half-way, where that of the record was not. The scores of one context with candidates are compared with
those of the expanded rows, for every kind of feature.
"""

import collections
import csv
import dataclasses
import types
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf.internal.decoder import _DecodeVarint
from sklearn.metrics import roc_auc_score

from ctr_trainer.data.dataset import open_dataset
from ctr_trainer.estimator import Estimator
from ctr_trainer.export.warmup import FILE
from ctr_trainer.live.scoring import served_model
from ctr_trainer.live.scoring.request_forms import of_rows
from ctr_trainer.live.scoring.tower import Tower
from ctr_trainer.models.registry import MODELS
from ctr_trainer.settings.command_flags import ScoreLimits
from tests import golden, graphs
from tests.models import every

pytestmark = pytest.mark.slow
tf1 = tf.compat.v1
# With oneDNN or without, with AVX-512, AVX2 or SSE4.1, no loss differs by more than 6e-7; dense learning rates larger
# by a thousandth change some loss of every model by more than 1e-5.
RELATIVE_TOLERANCE = 1e-5
COUNT = 7  # Candidates of a ranking request.
# Whose tower is also served without rows: one for each set of inputs of rows, the only difference between towers.
SERVED = ("lr", "deepfm", "ffm", "din", "onetrans", "din-of-two-labels", "final_mlp-context", "pepnet")
# Whose training is interrupted, and which are evaluated: one for each kind of variables and of heads, as the Estimator
# does both, whatever the model.
RESUMED = ("lr", "deepfm", "din", "dien", "ffm", "mmoe", "esmm", "din-of-two-labels", "qnn-norm", "fcn-norm", "tabm")
SPLITS = {
    "most": ("user", "place", "device", "age", "tags", "words", "history"),
    "few": ("item", "price", "topics"),
    "none": (),
}


@dataclasses.dataclass(frozen=True)
class Exported:
    """An exported graph in a session, and the directory of its SavedModel."""

    path: str
    session: tf1.Session
    signatures: dict[str, Any]

    def run(self, signature, values):
        """Returns what a signature answers for those of the values that it asks for."""
        feed = {tensor.name: values[name] for name, tensor in self.signatures[signature].inputs.items()}
        outputs = self.signatures[signature].outputs
        return self.session.run({name: tensor.name for name, tensor in outputs.items()}, feed)

    def warm_up(self):
        """Answers the requests of the warm-up file as TensorFlow Serving does: one for each signature."""
        named = set()
        for log in tf1.io.tf_record_iterator("/".join((self.path, *FILE))):
            ((request,),) = (_fields(each)[1] for each in _fields(log)[6])  # PredictionLog.predict_log.request
            ((name,),) = (_fields(each)[3] for each in _fields(request)[1])  # model_spec.signature_name
            given = {}
            for entry in map(_fields, _fields(request)[2]):  # inputs
                given[entry[1][0].decode()] = tf.make_ndarray(tf1.make_tensor_proto(0.0).FromString(entry[2][0]))
            found = self.run(name.decode(), given)
            assert all(np.isfinite(values).all() for values in found.values() if values.dtype.kind == "f")
            named.add(name.decode())
        assert named == self.signatures.keys()


def _fields(message):
    """Returns the contents of the fields of a protobuf message of texts and messages, by number."""
    found, at = collections.defaultdict(list), 0
    while at < len(message):
        tag, at = _DecodeVarint(message, at)
        size, at = _DecodeVarint(message, at)
        found[tag >> 3].append(message[at : at + size])
        at += size
    return found


@dataclasses.dataclass(frozen=True)
class Trained:
    """A variant after the steps of its record.

    Attributes:
      estimator: whose graphs of the first half of the training, or of all of it if it is not interrupted, and whose
        exported graph are optimized if it is the first variant of its model: TensorFlow optimizes a graph whatever the
        settings of the model. Their results are compared with those of graphs that are not.
    """

    name: str
    estimator: Estimator
    losses: golden.Losses
    data: str
    exported: Exported


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return golden.make_data(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module", params=every.VARIANTS)
def trained(request, data, tmp_path_factory):
    name, directory = request.param, tmp_path_factory.mktemp("trained")
    estimator, losses = golden.make_estimator(name, directory / "model")
    is_first = name == next(iter(every.variants(name.partition("-")[0])))
    graphs.is_optimized = is_first
    for last in [golden.STEPS // 2] * (name in RESUMED) + [golden.STEPS]:
        estimator.train(lambda position: golden.reader(name, data, position), hooks=[losses], max_steps=last)
        graphs.is_optimized = False
    path = estimator.export_to(directory / "export")
    with tf.Graph().as_default():
        graphs.is_optimized = is_first
        session = tf1.Session()
        graphs.is_optimized = False
        signatures = tf1.saved_model.load(session, [tf.saved_model.SERVING], path).signature_def
    yield Trained(name, estimator, losses, data[every.labels(name)], Exported(path, session, signatures))
    session.close()


def _rows(data):
    with open(data.parent / "rows.csv") as file:
        return list(csv.DictReader(file))


def _labels(data):
    """Returns the labels of the rows, by the suffix of a prediction's name, which is "" for one label."""
    clicked, bought = ([row[name] in ("1", "yes") for row in _rows(data)] for name in ("clicked", "order"))
    return {"": clicked, "/clicked": clicked, "/bought": bought}


def _raw_values(data):
    """Returns the data set's raw values as inputs of an exported graph, by column."""
    spec, rows, values = open_dataset(data).spec, _rows(data), {}
    for feature in spec.dense:
        values[feature.column] = np.float32([row[feature.column] or "nan" for row in rows])
    for feature in spec.sparse:
        texts = [row[feature.column] for row in rows]
        if feature.combiner is not None:
            lists = [text.split(feature.separator) if text else [] for text in texts]
            texts = [each + [""] * (max(map(len, lists)) - len(each)) for each in lists]
        values.setdefault(feature.column, np.array(texts))
    return values


def test_trains_with_the_losses_on_record_resumes_evaluates_and_exports(trained):
    name, estimator, own = trained.name, trained.estimator, trained.data
    np.testing.assert_allclose(trained.losses.values, golden.load(name), rtol=RELATIVE_TOLERANCE, atol=0)

    predicted = every.probabilities(list(estimator.predict(lambda: every.once(name, own))))
    assert all(values.std() > 0.001 for values in predicted.values())  # different rows get different predictions
    if name in RESUMED:
        metrics, truth = estimator.evaluate(lambda: every.once(name, own)), _labels(own)
        assert (metrics["examples"], metrics["global_step"]) == (golden.ROWS, golden.STEPS)
        for key, values in predicted.items():
            label = key.removeprefix("probabilities")
            assert metrics[f"auc{label}"] == pytest.approx(roc_auc_score(truth[label], values), abs=1e-3)

    operations = trained.exported.session.graph.get_operations()
    assert not [op.type for op in operations if "PyFunc" in op.type]  # Stock operations only.
    served = every.probabilities(trained.exported.run("serving_default", _raw_values(own)))
    assert served.keys() == predicted.keys()
    for key, values in predicted.items():
        np.testing.assert_allclose(served[key], values, atol=1e-6, rtol=0, err_msg=key)


def _table_rows(table, keys):
    """Returns the rows of a table, each a function of its key, and that all keys have one."""
    width = int(table.removeprefix("dim")) + 1
    rows = np.sin(keys[:, None] % 1000 * np.arange(1.0, width + 1)).astype(np.float32) / 3
    return rows, np.ones(len(keys), np.bool_)


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


def test_a_context_with_candidates_gets_the_scores_of_the_expanded_rows(trained, tmp_path):
    exported = trained.exported
    raw = {name: values[:COUNT] for name, values in _raw_values(trained.data).items()}
    for split, context in SPLITS.items():
        ranked = {each: values[:1] if each in context else values for each, values in raw.items()}
        expanded = {each: np.repeat(values, COUNT // len(values), 0) for each, values in ranked.items()}
        expected = exported.run("serving_default", expanded)
        _assert_equal(exported.run("ranking", ranked), expected, split)
    assert np.ptp(next(iter(expected.values()))) > 0  # different rows get different scores
    wrong = {each: values[:2] if each in SPLITS["few"] else values for each, values in raw.items()}
    with pytest.raises(tf.errors.InvalidArgumentError, match="ranking request gives 1 value"):
        exported.run("ranking", wrong)
    assert exported.signatures.keys() == {"serving_default", "ranking"}
    exported.warm_up()

    if trained.name not in SERVED:
        return
    path = trained.estimator.export_to(tmp_path / "tower", rows="none")
    tower = Tower(path)
    _ranks(tower, _instances(raw))
    exported = Exported(path, tower._session, tower._meta.signature_def)
    assert exported.signatures.keys() == {"serving_default", "keys", "ranking", "ranking_keys"}
    exported.warm_up()
    tower.close()


class _Served(served_model.ServedModel):
    """A tower that is served with the rows of `_table_rows`."""

    freshness = None

    def __init__(self, tower):
        self.tower, self.reader = tower, types.SimpleNamespace(read=_table_rows)
        self.new_keys = self._count_of_keys(tower)


def _ranks(tower, instances):
    served, limits = _Served(tower), ScoreLimits()
    assert tower.ranks
    for split, context in SPLITS.items():
        shared = {each: instances[0][each] for each in context}
        candidates = [{each: v for each, v in instance.items() if each not in context} for instance in instances]
        ranked = of_rows(tower.inputs, candidates, limits, shared)
        expanded = of_rows(tower.inputs, [{**shared, **each} for each in candidates], limits)
        expected, found = map(served._score, (expanded, ranked))
        _assert_equal(found.outputs, expected.outputs, split)
        assert found.distinct_keys == expected.distinct_keys
        _assert_equal(served._score(ranked.expanded()).outputs, expected.outputs, split)


def test_every_models_losses_are_on_record_and_fall():
    assert {path.stem for path in golden.path("lr").parent.glob("*.json")} == set(MODELS)
    epoch = -(-golden.ROWS // 32)
    for name in every.VARIANTS:
        losses = golden.load(name)
        assert len(losses) == golden.STEPS
        assert np.mean(losses[-epoch:]) < np.mean(losses[:epoch]), name
