"""A scoring server against `predict`, over its sockets."""

import concurrent.futures
import contextlib
import gc
import logging
import resource
import threading
import time

import numpy as np
import pyarrow as pa
import pytest

from ctr_trainer.embedding.worker.new_keys import NewKeys
from ctr_trainer.live.publication.places import open_reader
from ctr_trainer.live.scoring.request_forms import ARROW
from ctr_trainer.settings.command_flags import ScoreLimits
from tests.scoring import trained
from tests.scoring.conftest import Client, exchanged, probabilities, running, until, waiting_reader

_PREDICT = f"/v1/models/{trained.NAME}:predict"


def _columns(instances):
    return {name: [each[name] for each in instances] for name in instances[0]}


def test_rows_columns_and_single_examples_get_predicts_numbers(client, small_model):
    instances, expected = small_model.instances, small_model.expected[0]
    assert expected.std() > 0.02  # different examples get different predictions
    status, answer, _ = client.predict(inputs=_columns(instances), signature_name="serving_default")
    assert status == 200 and sorted(answer["outputs"]) == ["logits", "probabilities"]
    np.testing.assert_allclose(answer["outputs"]["probabilities"], expected, atol=1e-6, rtol=0)
    for place in (slice(0, 1), slice(99, 100), slice(100)):
        status, answer, headers = client.predict(instances=instances[place])
        assert status == 200, answer
        np.testing.assert_allclose(probabilities(answer), expected[place], atol=1e-6, rtol=0)
    text = {**instances[0], "user": "12", "tags": ["7", "t1"]}
    other = {**text, "user": {"b64": "MTI="}, "tags": [7, {"b64": "dDE="}]}
    _, answer, _ = client.predict(instances=[text, other, {**text, "user": 12}])
    assert len(set(probabilities(answer).tolist())) == 1
    assert (headers["X-Model-Generation"], headers["X-Model-Epoch"]) == ("1", "0")
    assert headers["X-Model-Step"] == str(small_model.checkpoints[0].step)
    assert 0 < float(headers["X-Model-Age-Seconds"]) < 3600 and "rows;dur=" in headers["Server-Timing"]


def test_a_server_within_another_program_changes_no_state_of_its_process(publication, monkeypatch):
    errors, accesses = (logging.getLogger(f"uvicorn.{name}") for name in ("error", "access"))
    monkeypatch.setattr(accesses, "handlers", [logging.NullHandler()])

    def state():
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        return limits, errors.level, accesses.level, accesses.propagate, accesses.handlers

    errors.setLevel(logging.NOTSET)
    before, frozen = state(), gc.get_freeze_count()
    with running(publication):
        pass
    assert state() == before and gc.get_freeze_count() <= frozen  # Frozen objects may be freed.


def test_arrow_gives_the_same_numbers_in_order(client, small_model):
    table = pa.table(_columns(small_model.instances))
    table = table.set_column(0, "user", table["user"].dictionary_encode())
    two = pa.concat_tables([table[:30], table[30:]])
    for rows, expected in ((two, small_model.expected[0]), (table[:30], small_model.expected[0][:30])):
        status, answer, headers = exchanged(client, rows)
        assert status == 200 and headers["X-Model-Epoch"] == "0"
        np.testing.assert_allclose(answer["probabilities"].to_numpy(), expected, atol=1e-6, rtol=0)


def test_what_is_wrong_with_a_stream_of_arrow_is_named(client, small_model):
    batch = pa.table(_columns(small_model.instances[:2])).to_batches()[0]
    twice = batch.rename_columns(["user" if name == "item" else name for name in batch.schema.names])
    for rows, name, status, message in (
        (_with(batch, "price", pa.array(["1", "2"])), trained.NAME, 400, "'price': type string: expected a number"),
        (_with(batch, "price", pa.array([1.0, 1e39])), trained.NAME, 400, "example 1, column 'price': \"inf\" is not"),
        (batch.drop_columns(["user"]), trained.NAME, 400, "column 'user' is missing"),
        (twice, trained.NAME, 400, "the body has 2 columns named 'user'"),
        (batch[:0], trained.NAME, 400, "0 examples: expected 1 to 1024"),
        (batch, "other", 404, "no model 'other'; this server has 'small'"),
    ):
        found, answer, _ = exchanged(client, rows, name)
        assert found == status and message in answer["error"], answer
    status, answer, _ = client.ask(_PREDICT, b"ARROW1..", {"Content-Type": ARROW})
    assert status == 400 and "the body is not a valid Arrow IPC stream" in answer["error"]


def _with(batch, name, values):
    return batch.set_column(batch.schema.names.index(name), name, values)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("user", 1.5, "example 1, column 'user': 1.5 is not a text, an integer, or null"),
        ("user", ["u1"], "column 'user': [\"u1\"] is not a text"),
        ("user", True, "column 'user': true is not a text"),
        ("user", {"b64": "!"}, "is not base64"),
        ("price", "12", "column 'price': \"12\" is not a number"),
        ("price", 1e39, "column 'price': 1e+39 is not a number"),
        ("price", 10**400, "is not a number"),
        ("age", True, "column 'age': true is not a number"),
        ("tags", "t1", "column 'tags': \"t1\" is not a list of texts"),
        ("tags", [1.5], "column 'tags': [1.5] is not a list of texts"),
        ("tags", ["t"] * 1001, "column 'tags': 1001 values, above the 1000 of max_list_length"),
        ("topics", ["p1:half"], "column 'topics': \"p1:half\" is not a text whose weight is a number"),
        ("topics", ["p1:1e999"], "is not a text whose weight is a number"),
        ("colour", "red", 'unknown column "colour"; the model reads price, age, user'),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_by_the_name_of_its_feature(client, small_model, name, value, message):
    good, bad = small_model.instances[0], {**small_model.instances[1], name: value}
    status, answer, _ = client.predict(instances=[good, bad])
    assert status == 400 and message in answer["error"] and "example 1" in answer["error"]


def test_what_is_no_request_is_refused(client, small_model):
    instance = small_model.instances[0]
    without = {name: value for name, value in instance.items() if name != "item"}
    for body, message in [
        (b"{", "the body is not JSON"),
        (b"[" * 100_000, "the body is not JSON"),
        ({}, 'one of three forms: {"instances": [...]}'),
        ({"instances": [], "inputs": {}}, "one of three forms"),
        ({"instances": []}, "expected a list of examples"),
        ({"instances": [1]}, "example 0: 1 is not an object"),
        ({"instances": [without]}, "example 0: column 'item' is missing: expected a text"),
        ({"instances": [instance] * 1025}, "1025 examples: expected 1 to 1024"),
        ({"inputs": [1]}, '"inputs": expected the columns'),
        ({"inputs": {**_columns([instance]), "item": []}}, "column 'item': [] is not a list with one value"),
        ({"inputs": {**_columns([instance]), "item": ["a", "b"]}}, "column 'item': 2 values, and 'price' has 1"),
        ({"instances": [instance], "signature_name": "keys"}, "the only signature is 'serving_default'"),
    ]:
        status, answer, _ = client.ask(_PREDICT, body)
        assert status == 400 and message in answer["error"], answer
    for path, status in (("/v1/models/other:predict", 404), (f"/v1/models/{trained.NAME}", 404), ("/x", 405)):
        assert client.ask(path, {"instances": [instance]})[0] in (status, 404)


def test_says_its_state_what_it_takes_and_what_it_did(client, small_model):
    _, answer, _ = client.ask(f"/v1/models/{trained.NAME}")
    assert answer["model_version_status"][0]["version"] == "0"
    assert answer["model_version_status"][0]["state"] == "AVAILABLE"
    _, answer, _ = client.ask(f"/v1/models/{trained.NAME}/metadata")
    kinds = {each["name"]: each["kind"] for each in answer["columns"]}
    assert (kinds["price"], kinds["user"], kinds["tags"], kinds["topics"]) == (
        "number", "text", "texts", "weighted texts",
    )  # fmt: skip
    inputs = answer["metadata"]["signature_def"]["signature_def"]["serving_default"]["inputs"]
    assert inputs["price"]["dtype"] == "DT_FLOAT" and len(inputs["tags"]["tensor_shape"]["dim"]) == 2
    assert client.ask("/v1/models")[1] == {"models": [trained.NAME]}
    health = client.ask("/healthz")[1]
    assert health["status"] == "ok" and not {"lag_records", "event_age_secs"} & health.keys()
    client.predict(instances=small_model.instances[:3])
    client.predict(instances=[])
    figures = client.figures()
    assert figures['ctr_score_requests_total{status="200",transport="http"}'] >= 1
    assert figures['ctr_score_requests_total{status="400",transport="http"}'] >= 1
    assert figures['ctr_score_batch_examples_bucket{le="4.0"}'] >= 1
    assert figures["ctr_score_keys_total"] > 0 and figures["ctr_score_epoch"] == 0
    assert figures["ctr_score_age_seconds"] > 0 and figures['ctr_score_part_seconds_count{part="rows"}']
    assert "ctr_score_lag_records" not in figures


def test_the_age_the_event_time_and_the_lag_reach_everyone_who_asks(small_model, tmp_path):
    stream = {"event_seconds": time.time() - 100, "lag_records": 7}
    trained.Publishing(tmp_path, small_model, stream=stream).publish(0)
    with (
        running(tmp_path, wait=False, max_age_secs=1e-3) as server,
        contextlib.closing(Client(server.port)) as client,
    ):
        until(lambda: "above the 0.001 s of max_age_secs" in client.ask("/healthz")[1]["status"], "the age")
        assert client.ask("/healthz")[0] == 503
        status, _, headers = client.predict(instances=small_model.instances[:1])
        assert status == 200
        assert 100 <= float(headers["X-Model-Event-Age-Seconds"]) < 100 + 3600
        health = client.ask("/healthz")[1]
        assert health["lag_records"] == 7 and 100 <= health["event_age_secs"] < 100 + 3600
        figures = client.figures()
        assert figures["ctr_score_lag_records"] == 7 and figures["ctr_score_event_age_seconds"] >= 100


def test_values_that_training_never_saw_are_a_metric_and_warned_of_once(publication, small_model, caplog):
    NewKeys._warned.clear()
    instances = [{**each, "item": f"{each['item']}.0"} for each in small_model.instances]
    with running(publication) as server, contextlib.closing(Client(server.port)) as client:
        name = 'ctr_score_new_key_share{feature="%s"}'
        for _ in range(2):
            client.predict(instances=instances)
            until(lambda: client.figures().get(name % "item") == 1, "the end of the window")
        figures = client.figures()
        assert figures[name % "user"] == 0.5 and figures[name % "place"] == 0
        assert 0 <= figures[name.replace("share", "share_in_training") % "item"] < 0.5
    warned = [text for text in caplog.messages if text.startswith("feature item: ")]
    assert len(warned) == 1 and "values look like 'a77.0', in training like 'a77'. In training " in warned[0]


def test_a_newer_record_is_served_and_no_answer_mixes_two(small_model, tmp_path):
    publishing = trained.Publishing(tmp_path, small_model)
    publishing.publish(0)
    with running(tmp_path) as server, concurrent.futures.ThreadPoolExecutor(2) as threads:
        ends = threading.Event()

        def ask_on():
            answers = []
            with contextlib.closing(Client(server.port)) as client:
                while not ends.is_set():
                    answers.append(client.predict(instances=small_model.instances[:20]))
            return answers

        asking = [threads.submit(ask_on) for _ in range(2)]
        try:
            with contextlib.closing(Client(server.port)) as client:
                for generation, epoch, number in ((1, 1, 1), (2, 0, 0)):
                    if epoch == 0:
                        publishing.spool.begin()
                    publishing.publish(number)
                    served = {"x-model-generation": str(generation), "x-model-epoch": str(epoch)}
                    one = dict(instances=small_model.instances[:1])
                    until(lambda s=served, one=one: s.items() <= dict(client.predict(**one)[2]).items(), str(served))
        finally:
            ends.set()
        answers = [answer for each in asking for answer in each.result(60)]
    of_record = {("1", "0"): 0, ("1", "1"): 1, ("2", "0"): 0}
    for status, answer, headers in answers:
        assert status == 200, answer
        which = of_record[headers["X-Model-Generation"], headers["X-Model-Epoch"]]
        np.testing.assert_allclose(probabilities(answer), small_model.expected[which][:20], atol=1e-6, rtol=0)
    assert {headers["X-Model-Epoch"] for _, _, headers in answers} == {"0", "1"}


def test_a_record_that_is_not_finite_is_refused_and_the_one_before_stays(small_model, tmp_path, caplog):
    publishing = trained.Publishing(tmp_path, small_model)
    publishing.publish(0)
    with running(tmp_path) as server, contextlib.closing(Client(server.port)) as client:

        def assert_serves(epoch):
            status, answer, headers = client.predict(instances=small_model.instances)
            assert status == 200 and headers["X-Model-Epoch"] == str(epoch)
            expected = small_model.expected[1 if epoch else 0]
            np.testing.assert_allclose(probabilities(answer), expected, atol=1e-6, rtol=0)

        publishing.publish(1, trained.not_finite)
        until(lambda: "problem" in client.ask("/healthz")[1], "the refusal")
        refused, none = (f'ctr_score_refreshes_total{{outcome="{outcome}"}}' for outcome in ("refused", "none"))
        for _ in range(3):
            looks = client.figures().get(none, 0.0)
            until(lambda n=looks: client.figures().get(none, 0.0) > n, "another look")
            status, health, _ = client.ask("/healthz")
            assert status == 200 and health["status"] == "ok" and "is nan" in health["problem"]
            assert "epoch 1 of generation 1 is not served" in health["problem"]
            assert_serves(0)
        assert client.figures()[refused] == 1
        publishing.publish(1)
        until(lambda: client.ask("/healthz")[1]["epoch"] == 2, "the next epoch")
        assert_serves(2)
        until(lambda: "problem" not in client.ask("/healthz")[1], "the end of the problem")
    assert len([each for each in caplog.records if "is not served" in each.getMessage()]) == 1


def test_waits_for_its_publication_and_says_so(small_model, tmp_path):
    url = tmp_path / "later"
    with running(url, wait=False) as server, contextlib.closing(Client(server.port)) as client:
        until(lambda: "there is no publication" in client.ask("/healthz")[1]["status"], "the reason")
        status, answer, headers = client.predict(instances=small_model.instances[:1])
        assert status == 503 and "there is no publication" in answer["error"] and headers["Retry-After"] == "1"
        # A first record that is not finite is waited out.
        publishing = trained.Publishing(url, small_model)
        publishing.publish(0, trained.not_finite)
        until(lambda: "is nan" in client.ask("/healthz")[1]["status"], "the refusal")
        publishing.publish(1)
        until(lambda: client.ask("/healthz")[0] == 200, "the model")


def test_a_full_queue_is_said_and_the_end_waits_for_requests(publication, small_model):
    goes_on, began, instances = threading.Event(), threading.Event(), small_model.instances

    class Limits(ScoreLimits):
        max_body_bytes = 100_000

    limits = Limits(max_queue=3, timeout_secs=30.0)
    slow = dict(reader=lambda url: waiting_reader(open_reader(url), goes_on, began), limits=limits)
    with running(publication, **slow) as server, concurrent.futures.ThreadPoolExecutor(3) as threads:

        def ask(count):
            with contextlib.closing(Client(server.port)) as client:
                return client.predict(instances=instances[:count])

        with contextlib.closing(Client(server.port)) as client:
            first = threads.submit(ask, 1)
            assert began.wait(60)
            second = threads.submit(ask, 2)
            until(lambda: server._batcher.waiting == 2, "two that wait")
            status, answer, headers = client.predict(instances=instances[:2])
            assert status == 429 and headers["Retry-After"] == "1"
            assert "2 examples wait; the limit is 3 examples" in answer["error"]
            status, answer, _ = client.ask(_PREDICT, b" " * 100_001)
            assert status == 413 and "over 100000 bytes" in answer["error"]
        server.stop()
        goes_on.set()
        for future, count in ((first, 1), (second, 2)):
            status, answer, _ = future.result(60)
            assert status == 200
            np.testing.assert_allclose(probabilities(answer), small_model.expected[0][:count], atol=1e-6, rtol=0)


def test_a_request_that_takes_too_long_is_answered_504(publication, small_model):
    goes_on = threading.Event()
    slow = dict(
        reader=lambda url: waiting_reader(open_reader(url), goes_on, threading.Event()),
        limits=ScoreLimits(timeout_secs=0.2),
    )
    with running(publication, **slow) as server, contextlib.closing(Client(server.port)) as client:
        status, answer, _ = client.predict(instances=small_model.instances[:1])
        goes_on.set()
        assert status == 504 and "not scored within 0.2 s (timeout_secs)" in answer["error"]
        until(lambda: client.predict(instances=small_model.instances[:1])[0] == 200, "the next request")


def test_a_token_is_asked_for_where_there_is_one(publication, small_model, tmp_path):
    (tmp_path / "token").write_text("secret\n")
    with running(publication, token_file=str(tmp_path / "token")) as server:
        for token, status in (("", 401), ("Bearer x", 401), ("Bearer secret", 200)):
            headers = {"Authorization": token} if token else {}
            with contextlib.closing(Client(server.port, headers)) as client:
                found, answer, _ = client.predict(instances=small_model.instances[:1])
                assert found == status, answer
                assert headers or "send it as `Authorization: Bearer TOKEN`" in answer["error"]
                assert client.ask(f"/v1/models/{trained.NAME}")[0] == status
                assert client.ask("/healthz")[0] == 200
