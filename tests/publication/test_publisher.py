"""What a training writes for its delivery: one record after the other, even if an attempt fails."""

import functools
import logging
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.live.publication import records
from ctr_trainer.live.publication.publisher import Publisher
from ctr_trainer.live.publication.publishing import trained_variables
from ctr_trainer.live.publication.spool import DeliveryStatus, Spool, write_status
from ctr_trainer.settings.training_configs import PublishConfig
from ctr_trainer.system.measuring.clock import Clock
from ctr_trainer.system.messages.errors import UserError
from tests import published
from tests.parallel import launch

CONFIG = TableConfig("t", (2, 1), (0.1, 0.0), "sgd", seed=5)
SECONDS = 60.0


_until = functools.partial(launch.wait_until, what="the publisher", seconds=SECONDS, every=0.005)


def _until_said(caplog, text):
    """Waits for a line of the log that has this text; other threads may log before it."""
    _until(lambda: text in caplog.text)


class Session:
    """Plays a session whose variable `w` has a value."""

    def __init__(self, value):
        self._value = value

    def run(self, fetches):
        return {"w": np.float32(self._value), "global_step": np.int64(1)}


class Tower:
    """Writes a file of the values it is given."""

    def __init__(self):
        self.is_full = False

    def write(self, path, values):
        if self.is_full:
            raise OSError(28, "No space left on device", path)
        with open(f"{path}/tower", "w") as file:
            file.write(f"{values['w']:g}")


class Delivery:
    """Plays a delivery: it delivers each record of its spool at once, or the test writes what it reports."""

    spool = None

    def keep(self):
        if self.spool and self.spool.last:
            write_status(self.spool.path, DeliveryStatus(self.spool.last.generation, self.spool.last.epoch))

    def close(self):
        pass


@pytest.fixture
def store():
    store = LocalStore(is_published=True)
    store.create_table(CONFIG)
    return store


@pytest.fixture
def publish(store, tmp_path):
    """publish(delivers, **settings) -> (Publisher, Spool, Tower); they end with the test."""
    publishers = []

    def publish(delivers=True, secs=0.1, **settings):
        spool, tower = Spool(tmp_path / "spool", "deepfm", store.publish, [CONFIG], "float32"), Tower()
        delivery = Delivery()
        delivery.spool = spool if delivers else None
        publishers.append(
            Publisher(
                config=PublishConfig(to="there", secs=secs), spool=spool, variables={}, write_tower=tower.write,
                delivery=delivery, clock=Clock(), **settings,
            )
        )  # fmt: skip
        return publishers[-1], spool, tower

    yield publish
    for publisher in publishers:
        publisher.close()


def _push(store, first, stop, number):
    keys = np.arange(first, stop)
    store.sync("t", keys, np.ones((len(keys), 3), np.float32), "w", number)


def _offer(publisher, step, when_delivered=True):
    _until(lambda: not when_delivered or publisher._offer is None and not publisher._waiting())
    publisher._offered = 0.0  # The next one is due.
    publisher.after_step(Session(step), step)


def _published(publisher, spool, step):
    """Publishes a tower whose variable is the step, as the first one or after a step. Returns its record."""
    if spool.last is None:
        publisher.begin(Session(step), step)
    else:
        _offer(publisher, step)
    _until(lambda: spool.last is not None and spool.last.global_step == step)
    return spool.last


def _of(rows):
    return {"t": {key: [float(x) for x in row] for key, row in rows.items()}}


def test_each_record_names_its_tower_and_is_the_table(store, publish):
    publisher, spool, _ = publish()
    _push(store, 1, 4, 0)
    first = _published(publisher, spool, 5)
    _push(store, 3, 6, 1)
    second = _published(publisher, spool, 7)
    rows, record, epochs = published.state(spool.path)
    assert (first.kind, second.kind, epochs, record.files) == ("base", "epoch", 1, second.files)
    assert (first.rows, second.rows) == (3, 3)
    table = store.tables["t"]
    assert rows == _of(dict(zip(table.keys.tolist(), table.stored.tolist(), strict=True)))
    towers = [records.generation_path(spool.path, 1) / each.dense / "tower" for each in (first, second)]
    assert [tower.read_text() for tower in towers] == ["5", "7"]
    _until(lambda: publisher.results()["publication"]["waiting"] == 0)
    assert publisher.results()["publication"] == dict(
        to="there", epochs=2, rows=6, removed=0, global_step=7, waiting=0, failures=0, age_secs=pytest.approx(0, abs=60)
    )


def test_a_delivery_begins_the_next_record_which_has_all_changes_meanwhile(store, publish, caplog):
    publisher, spool, _ = publish(delivers=False)
    _published(publisher, spool, 1)
    for step in range(2, 5):
        _push(store, step, step + 1, step)
        _offer(publisher, step, when_delivered=False)
    assert publisher._offer is None and spool.last.global_step == 1
    publisher._begun -= 100
    with caplog.at_level(logging.WARNING):
        _until_said(caplog, "there: a record waits to be delivered; the rows there are 10")
    write_status(spool.path, DeliveryStatus(spool.last.generation, 0))
    assert _published(publisher, spool, 5).rows == 3
    figures = publisher.results()["publication"]
    assert figures["age_secs"] > 0 and figures["waiting"] == 1 and "waiting: 1" in publisher.status_line()
    write_status(spool.path, DeliveryStatus(spool.last.generation, 1))
    _until(lambda: publisher.results()["publication"]["waiting"] == 0)


def test_a_record_waits_until_the_rows_are_prepared(store, publish):
    begun, ended = [], threading.Event()
    publisher, spool, _ = publish(prepare=lambda: begun.append(True) or (lambda: not ended.is_set()))
    publisher.begin(Session(1), 1)
    _until(lambda: begun)
    _push(store, 1, 4, 0)
    time.sleep(0.1)  # What must not happen has no event.
    assert spool.last is None
    ended.set()
    _until(lambda: spool.last is not None)
    assert spool.last.rows == 3


def test_the_tower_is_offered_when_the_time_is_over_and_in_the_end(publish):
    publisher, spool, _ = publish(secs=1000.0)
    _published(publisher, spool, 1)
    publisher.after_step(Session(2), 2)
    time.sleep(0.3)  # What must not happen has no event.
    assert spool.records == 1
    publisher.finish(Session(3), 3)
    assert (spool.records, spool.last.global_step) == (2, 3)


def test_a_training_that_hardly_waits_for_input_offers_less_often(publish):
    publisher, spool, _ = publish(secs=0.01)
    _published(publisher, spool, 1)
    _until(lambda: publisher._offer is None and not publisher._waiting())
    publisher._writing_seconds = 1000.0
    publisher.after_step(Session(2), 2)
    assert publisher._offer is None

    def is_offered():
        with publisher._clock.within("read"):
            time.sleep(0.05)
        publisher.after_step(Session(3), 3)
        return spool.last.global_step == 3

    _until(is_offered)


def test_a_tower_that_is_not_finite_is_not_published_and_the_next_one_is(publish, caplog):
    publisher, spool, _ = publish()
    publisher.begin(Session(np.nan), 1)
    _until_said(caplog, "step 1 is not published: the variable w is not finite: the training diverged")
    assert spool.last is None and publisher.failures == 1
    publisher.finish(Session(2), 2)
    assert spool.last.global_step == 2


def test_a_full_disk_is_said_and_nothing_is_lost(store, publish, caplog):
    publisher, spool, tower = publish()
    _push(store, 1, 4, 0)
    _published(publisher, spool, 1)
    tower.is_full = True
    _push(store, 3, 6, 1)
    _offer(publisher, 2)
    _until_said(caplog, "there: not published: [Errno 28] No space left on device")
    assert "the training continues" in caplog.text
    assert published.state(spool.path)[1].global_step == 1
    tower.is_full = False
    publisher.finish(Session(3), 3)
    assert spool.last.rows == 3 and len(published.state(spool.path)[0]["t"]) == 5


def test_what_a_delivery_reports_is_said_once_and_a_lost_target_gets_all_rows(store, publish, caplog):
    publisher, spool, _ = publish(delivers=False, is_stopping=lambda: True, grace_secs=1.2)
    _push(store, 1, 4, 0)
    _published(publisher, spool, 1)
    write_status(spool.path, DeliveryStatus(1, 0, problem="another training publishes there"))
    said = "there: not delivered: another training publishes there; the training continues"
    _until_said(caplog, said)
    _published(publisher, spool, 2)
    assert caplog.text.count(said) == 1
    write_status(spool.path, DeliveryStatus(1, problem="lost", needs_base=True))
    _offer(publisher, 3)
    _until(lambda: spool.last is not None and spool.last.generation == 2)
    assert (spool.last.kind, spool.last.rows) == ("base", 3)
    _until(lambda: [path.name for path in spool.path.glob("generation-*")] == ["generation-0000000002"])
    write_status(spool.path, DeliveryStatus(2, 0))
    publisher.finish(Session(9), 9)
    said = "the end of the training was not published to there within 0 s: step 9 is written, but not fully"
    assert said in caplog.text


def test_a_target_that_is_lost_in_the_end_gets_all_rows(store, publish, caplog):
    publisher, spool, _ = publish(delivers=False)
    _push(store, 1, 4, 0)
    _published(publisher, spool, 1)
    ending = threading.Thread(target=publisher.finish, args=(Session(9), 9))
    ending.start()
    write_status(spool.path, DeliveryStatus(1, 0))
    _until(lambda: spool.last.epoch == 1)
    write_status(spool.path, DeliveryStatus(1, 0, problem="lost", needs_base=True))
    _until(lambda: not ending.is_alive() or spool.last is not None and spool.last.generation == 2)
    assert ending.is_alive() and (spool.last.kind, spool.last.global_step, spool.last.rows) == ("base", 9, 3)
    write_status(spool.path, DeliveryStatus(2, 0))
    ending.join(SECONDS)
    assert not ending.is_alive() and "was not published" not in caplog.text


def test_a_training_after_one_killed_in_its_first_record_begins_a_generation(publish):
    for generation in (1, 3):
        publisher, spool, _ = publish()
        assert _published(publisher, spool, 1).generation == generation
        unfinished = records.generation_path(spool.path, 2)
        unfinished.mkdir(exist_ok=True)
        publisher.close()
    assert records.find_current(spool.path)[0] == 3


def test_all_rows_are_published_after_a_record_that_may_be_delivered(store, publish, monkeypatch):
    publisher, spool, _ = publish()
    _push(store, 1, 4, 0)
    _published(publisher, spool, 1)
    written = records.write_record

    def fails_when_written(url, record):
        monkeypatch.setattr(records, "write_record", written)
        written(url, record)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(records, "write_record", fails_when_written)
    _push(store, 3, 6, 1)
    publisher.finish(Session(2), 2)
    assert publisher.failures == 1
    assert (spool.last.kind, spool.last.generation, spool.last.rows) == ("base", 2, 5)


def test_no_record_is_written_once_the_store_may_be_closed(publish):
    publisher, spool, _ = publish()
    with pytest.raises(UserError, match="may come from a store that is closed"):
        spool.write(2, lambda path: publisher.close())
    assert records.list_records(spool.path, 1) == []


def test_a_variable_that_only_predictions_have_is_named():
    with (
        tf.Graph().as_default(),
        pytest.raises(UserError, match="publish: the model predicts with the variable head/bias, which its training"),
    ):
        tf.compat.v1.get_variable("w", [])
        trained_variables(["w", "head/bias"])
