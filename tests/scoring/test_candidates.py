"""One context with many candidates, over the sockets of a scoring server, against the expanded rows."""

import json
import pathlib

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from ctr_trainer.embedding.worker.new_keys import NewKeys
from ctr_trainer.features.columns import Label, SparseFeature
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.live.scoring import answers, served_model
from ctr_trainer.live.scoring.refusals import RequestRefused
from ctr_trainer.live.scoring.request_forms import Form
from tests.scoring import trained
from tests.scoring.conftest import Client, exchanged, probabilities, running

_CONTEXT = ("user", "place", "device", "age", "tags", "words", "topics", "history")


@pytest.fixture
def request_body(small_model):
    """The (context, candidates) of a request: the user of the first example, and the candidates of twenty examples."""
    first, *_ = small_model.instances
    context = {name: first[name] for name in _CONTEXT}
    return context, [
        {name: value for name, value in each.items() if name not in context} for each in small_model.instances[:20]
    ]


def _expanded(context, candidates):
    return [{**context, **each} for each in candidates]


def test_candidates_get_the_scores_of_the_expanded_rows(client, request_body, monkeypatch):
    context, candidates = request_body
    _, answer, _ = client.predict(instances=_expanded(context, candidates))
    expected = probabilities(answer)
    assert expected.std() > 0.01
    looked_up, look_up = [], served_model.look_up
    monkeypatch.setattr(served_model, "look_up", lambda *args: looked_up.append(args[3:5]) or look_up(*args))
    status, answer, headers = client.predict(context=context, candidates=candidates)
    assert status == 200, answer
    np.testing.assert_allclose(probabilities(answer), expected, atol=1e-6, rtol=0)
    assert headers["X-Model-Epoch"] == "0"
    _, found, _ = exchanged(client, pa.RecordBatch.from_pylist(candidates), context=context)
    np.testing.assert_allclose(found["probabilities"].to_numpy(), expected, atol=1e-6, rtol=0)
    assert looked_up == [(20, frozenset(_CONTEXT))] * 2


def test_any_feature_may_be_in_the_context_and_one_candidate_is_enough(client, small_model):
    first, second = small_model.instances[:2]
    _, answer, _ = client.predict(instances=[first, first, second])
    expected = probabilities(answer)
    for context, candidates, scores in [
        ({}, [first, second], expected[[0, 2]]),
        (first, [{}, {}], expected[:2]),
        (first, [{}], expected[:1]),
        ({"user": first["user"]}, [{name: v for name, v in first.items() if name != "user"}], expected[:1]),
    ]:
        status, answer, _ = client.predict(context=context, candidates=candidates)
        assert status == 200, answer
        np.testing.assert_allclose(probabilities(answer), scores, atol=1e-6, rtol=0)


def test_what_is_wrong_is_named_by_candidate_and_feature(client, request_body):
    context, candidates = request_body

    def with_last(**features):
        return [*candidates[:-1], {**candidates[-1], **features}]

    without = [{name: value for name, value in each.items() if name != "item"} for each in candidates]
    for given, offered, message in [
        (context, with_last(user="u1"), 'candidate 19: column "user" is in the context as well'),
        (context, with_last(colour="red"), 'candidate 19: unknown column "colour"; the model reads price, age'),
        (context, without, "candidate 0: column 'item' is missing"),
        (context, with_last(item=1.5), "candidate 19, column 'item': 1.5 is not a text"),
        ({**context, "tags": "t"}, candidates, "context, column 'tags': \"t\" is not a list"),
        (context, [*candidates, 1], "candidate 20: 1 is not an object"),
        (context, [], '"candidates": expected a list'),
        ([], candidates, '"context": [] is not an object'),
    ]:
        status, answer, _ = client.predict(context=given, candidates=offered)
        assert status == 400 and message in answer["error"], answer
    status, answer, _ = client.predict(context=context, candidates=candidates, instances=[])
    assert status == 400 and "one of three forms" in answer["error"]
    batch = pa.RecordBatch.from_pylist(candidates)
    for given, message in [
        ({**context, "item": "i1"}, 'columns: column "item" is in the context as well'),
        ({**context, "age": "x"}, "context, column 'age': \"x\" is not a number"),
    ]:
        status, answer, _ = exchanged(client, batch, context=given)
        assert status == 400 and message in answer["error"], answer


def test_a_table_read_only_for_its_sequence_needs_no_other_keys():
    user, history = (
        SparseFeature("user", "user", 2, "u"),
        SparseFeature("history", "history", 2, "h", combiner="none", max_length=3),
    )
    spec = FeatureSpec("s", Label("y"), (), (user, history))
    keys = {"values/history": np.array([5, 6]), "splits/history": np.int32([0, 2])}

    def read(table, keys):
        return np.float32(np.stack([keys, -keys], 1)), keys == 5

    for context, count in (frozenset(), 1), (frozenset({"history"}), 4):
        new_keys = NewKeys(["history"])
        inputs, distinct = served_model.look_up(spec, {"sequence/history"}, keys, count, context, read, new_keys.add)
        assert new_keys.report(lambda counts, name: counts)["new_keys"]["history"]["share"] == 0.5
        np.testing.assert_array_equal(inputs["sequence/history"], [[[5, -5], [6, -6], [0, 0]]])
        assert distinct == 2


def test_a_ranking_request_has_the_limits_of_the_expanded_one(client, request_body):
    context, candidates = request_body
    long = {**context, "tags": ["t"] * 1000}
    for body in (dict(instances=_expanded(long, candidates * 10)), dict(context=long, candidates=candidates * 10)):
        status, answer, _ = client.predict(**body)
        assert status == 413 and "200 examples have" in answer["error"], answer
        assert "a limit that grows with max_examples" in answer["error"]
    status, answer, _ = client.predict(context={**context, "user": "u" * 300_000}, candidates=candidates)
    assert status == 413 and "bytes if each of 20 candidates had its own copy" in answer["error"]


def _without_ranking(tower):
    """Removes the signatures for ranking, which a `model_fn` of one's own may not support."""
    file = pathlib.Path(tower, tf.saved_model.SAVED_MODEL_FILENAME_PB)
    saved = SavedModel.FromString(file.read_bytes())
    for name in ("ranking", "ranking_keys"):
        del saved.meta_graphs[0].signature_def[name]
    file.write_bytes(saved.SerializeToString())


def test_a_tower_that_cannot_rank_scores_the_expanded_rows(small_model, request_body, tmp_path):
    trained.Publishing(tmp_path, small_model).publish(0, _without_ranking)
    context, candidates = request_body
    with running(tmp_path) as server:
        client = Client(server.port)
        _, expected, _ = client.predict(instances=_expanded(context, candidates))
        assert client.predict(context=context, candidates=candidates)[1] == expected
        client.close()


def test_the_digits_of_an_answer_give_the_same_float32():
    next_to = np.nextafter(np.float32(0.1), np.float32(1))
    values = np.array([0.1, next_to, 1.0, 0.0, 1e-30, np.float32(1) / 3, -2.5e10, 3e38], np.float32)
    for outputs in ({"p": values}, {"p": values, '100% "q"': -values}):
        rows = json.loads(answers.predictions(outputs, Form.ROWS))["predictions"]
        for name, expected in outputs.items():
            found = [row[name] if len(outputs) > 1 else row for row in rows]
            assert all(type(each) is float for each in found)
            np.testing.assert_array_equal(np.array(found, np.float32), expected)
    with pytest.raises(RequestRefused, match="not a finite number.*diverged"):
        answers.predictions({"p": np.array([0.5, np.nan], np.float32)}, Form.ROWS)
