import contextlib
import errno
import functools
import time

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.live.publication.places import open_reader
from ctr_trainer.live.scoring import request_forms, served_model
from ctr_trainer.live.scoring.served_model import RecordRefused, ServedModel
from ctr_trainer.settings.command_flags import ScoreLimits
from ctr_trainer.system.messages.errors import UserError
from tests.scoring import trained
from tests.scoring.conftest import Client, running, until


@pytest.fixture
def publishing(small_model, tmp_path):
    """Has published the first checkpoint."""
    publishing = trained.Publishing(tmp_path, small_model)
    publishing.publish(0)
    return publishing


@pytest.fixture
def model(publishing, tmp_path):
    with contextlib.closing(ServedModel(open_reader(str(tmp_path)))) as model:
        yield model


def scores_are_those_of(model, small_model, number):
    examples = request_forms.of_rows(model.tower.inputs, small_model.instances, ScoreLimits())
    found = model.score(examples).outputs["probabilities"]
    np.testing.assert_allclose(found.ravel(), small_model.expected[number], atol=1e-5)


def test_towers_of_one_graph_share_two_sessions_until_another_graph_comes(small_model, publishing, model):
    sessions = [model.tower._session]
    for epoch in (1, 2, 3, 4):
        publishing.publish(epoch % 2)
        assert model.refresh()
        scores_are_those_of(model, small_model, epoch % 2)
        sessions.append(model.tower._session)
    assert sessions[0] is sessions[2] is sessions[4]
    assert sessions[1] is sessions[3] is not sessions[0]
    former = model.tower, model._spare
    publishing.publish(1, new_graph=True)
    assert model.refresh()
    scores_are_those_of(model, small_model, 1)
    assert model._spare is None
    for tower in former:
        with pytest.raises(RuntimeError, match="closed"):
            tower._session.run([])


@pytest.mark.parametrize(
    "error", [OSError(errno.ESTALE, "stale"), tf.errors.ResourceExhaustedError(None, None, "full")]
)
def test_a_tower_that_cannot_be_read_is_read_again_later(small_model, publishing, model, monkeypatch, error):
    sessions, failures = [], [error]

    class Session(tf.compat.v1.Session):
        def run(self, *arguments):
            sessions.append(self)
            if failures:
                raise failures.pop()
            return super().run(*arguments)

    publishing.publish(1)
    monkeypatch.setattr(tf.compat.v1, "Session", Session)
    with pytest.raises(RecordRefused, match="epoch 0 of generation 1 stays: .*(stale|full)"):
        model.refresh()
    with pytest.raises(RuntimeError, match="closed"):
        sessions[0].run([])
    assert not model.refresh()
    model._retry_at -= 30.0
    assert model.refresh()
    scores_are_those_of(model, small_model, 1)


def test_a_tower_is_closed_if_a_long_batch_prevents_the_switch_to_it(small_model, publishing, model, monkeypatch):
    towers = []

    class Tower(served_model.Tower):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            towers.append(self)

    monkeypatch.setattr(served_model, "Tower", Tower)
    monkeypatch.setattr("ctr_trainer.live.scoring.tower._SECONDS", 0.01)
    publishing.publish(1)
    with model._gate.batch(), pytest.raises(TimeoutError, match="did not end"):
        model.refresh()
    with pytest.raises(RuntimeError, match="closed"):
        towers[0]._session.run([])
    scores_are_those_of(model, small_model, 0)
    assert model.refresh()
    scores_are_those_of(model, small_model, 1)


class _Unawaited:
    """A reader that opens a publication before newer records come, and does not notice them while it waits.

    `wait`: f(seconds, ended), called by each wait.
    """

    def __init__(self, url, publish, wait=lambda seconds, ended: ended.wait(seconds)):
        self._reader, self._wait = open_reader(url), wait
        publish()

    def __getattr__(self, name):
        return getattr(self._reader, name)

    def await_newer(self, seconds, ended):
        self._wait(seconds, ended)
        return False


def test_a_server_loads_the_records_that_came_while_it_loaded_before_it_is_ready(publishing, tmp_path):
    def publish():
        for number in (1, 0, 1):
            publishing.publish(number)

    reader = functools.partial(_Unawaited, publish=publish)
    with running(tmp_path, reader=reader, refresh_secs=3600.0) as server, contextlib.closing(Client(server.port)) as c:
        assert c.ask("/healthz")[1]["epoch"] == 3


def test_a_wait_for_a_record_that_fails_does_not_end_the_search(publishing, tmp_path):
    failures = []

    def wait(seconds, ended):
        if not failures:
            failures.append(OSError(errno.ESTALE, "stale"))
            raise failures[0]
        ended.wait(seconds)

    reader = functools.partial(_Unawaited, publish=lambda: None, wait=wait)
    with running(tmp_path, reader=reader) as server, contextlib.closing(Client(server.port)) as client:
        until(lambda: failures, "the failure")
        publishing.publish(1)
        until(lambda: client.ask("/healthz")[1]["epoch"] == 1, "the newer record")


def test_a_publication_that_cannot_be_read_at_the_start_is_read_again(publishing, tmp_path):
    errors = [OSError(errno.EIO, "the disk did not answer"), UserError("there is no publication yet")]

    def reader(url):
        if errors:
            raise errors.pop()
        return open_reader(url)

    with running(tmp_path, reader=reader) as server, contextlib.closing(Client(server.port)) as client:
        assert client.ask("/healthz")[0] == 200 and not errors


def test_a_refresh_pauses_between_its_parts_so_that_requests_are_answered(publishing, model, monkeypatch):
    for number in (1, 0):  # From then on, towers take the session of an earlier one.
        publishing.publish(number)
        assert model.refresh()
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    publishing.publish(1)
    slept.clear()
    assert model.refresh()
    record = model.reader.record
    parts = len(record.files) + len(record.dense_files)
    assert len(slept) >= parts and max(slept) <= 0.01
