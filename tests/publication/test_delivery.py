import concurrent.futures
import contextlib
import dataclasses
import errno
import functools
import os
import re
import shutil
import threading
import time

import numpy as np
import pytest

from ctr_trainer.live.publication import directory_target, records
from ctr_trainer.live.publication.delivery import Delivery, deliver
from ctr_trainer.live.publication.directory_target import DirectoryTarget
from ctr_trainer.live.publication.places import open_reader
from ctr_trainer.live.publication.spool import NeedsBase, read_status, write_status
from ctr_trainer.system.messages.errors import UserError
from tests import object_store
from tests.parallel.launch import wait_until
from tests.publication.published import KEYS, Published, assert_there, deliver_all


@pytest.fixture
def target(tmp_path):
    target = DirectoryTarget(tmp_path / "target", grace_secs=0.0)
    yield target
    target.close()


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_epochs_are_delivered_in_order_and_leave_the_spool(tmp_path, target):
    spool = tmp_path / "spool"
    published = Published(spool)
    deliver_all(spool, target)
    assert_there(tmp_path / "target", published)
    published.epoch([2, 11], [3])
    published.epoch([4], [11])
    deliver_all(spool, target)
    assert_there(tmp_path / "target", published)
    assert read_status(spool).epoch == 2
    assert names(spool / "generation-0000000001") == [
        "dense-0000000002",
        "epoch-0000000002",
        "epoch-0000000002.json",
    ]


def test_a_delivery_continues_after_the_newest_record_of_the_target(tmp_path):
    spool, place = tmp_path / "spool", tmp_path / "target"
    published = Published(spool)
    for number in range(3):
        with contextlib.closing(Delivery(spool, functools.partial(DirectoryTarget, place))) as delivery:
            delivery.step()  # What a killed process leaves: the target has it, or not.
        published.epoch([number + 1], [8 - number])
    target = DirectoryTarget(place)
    deliver_all(spool, target)
    target.close()
    assert_there(place, published)


def test_files_of_a_killed_delivery_are_replaced_and_the_spool_keeps_its_own(tmp_path, target):
    spool = tmp_path / "spool"
    published = Published(spool)
    for part in ("generation-0000000001/base-0000000000", "generation-0000000001/dense-0000000000"):
        (tmp_path / "target" / part).mkdir(parents=True)
        for file in (spool / part).iterdir():
            (tmp_path / "target" / part / file.name).hardlink_to(file)
    deliver_all(spool, target)
    assert_there(tmp_path / "target", published, generation=2)
    records.check_files(spool, published.record)


def test_a_base_that_failed_is_written_again_in_its_generation(tmp_path, target, monkeypatch):
    spool, place, calls = tmp_path / "spool", tmp_path / "target", []
    published, copy = Published(spool), directory_target._copy

    def fail_once(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise UserError("full")
        copy(*arguments)

    monkeypatch.setattr(directory_target, "_copy", fail_once)
    with pytest.raises(UserError, match="full"):
        deliver_all(spool, target)
    deliver_all(spool, target)
    assert names(place) == [".lock", "generation-0000000001"]
    assert_there(place, published)


def test_a_new_generation_of_the_spool_is_one_of_the_target(tmp_path, target):
    spool = tmp_path / "spool"
    Published(spool, generation=1, holder="a")
    deliver_all(spool, target)
    rolled_back = Published(spool, generation=2, holder="b", rows=[5, 6])
    rolled_back.epoch([7])
    deliver_all(spool, target)
    assert_there(tmp_path / "target", rolled_back, generation=2)
    assert names(spool) == ["delivered.json", "generation-0000000002"]
    last = Published(spool, generation=3, holder="c")
    deliver_all(spool, target)
    assert_there(tmp_path / "target", last, generation=3)
    assert names(tmp_path / "target") == [".lock", "generation-0000000003"]


def test_a_second_publisher_is_refused_by_name_and_the_training_is_told_so(tmp_path, target):
    Published(tmp_path / "spool", holder="a")
    ended = threading.Event()

    def refused():
        ended.set()
        return DirectoryTarget(tmp_path / "target")

    deliver(tmp_path / "spool", "there", refused, ended)
    delivered = read_status(tmp_path / "spool")
    assert re.search(r"process \d+ on host .* publishes there now", delivered.problem)
    assert (delivered.generation, delivered.epoch) == (1, -1)


def test_a_spool_is_delivered_by_one_process_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("ctr_trainer.system.files.lease._KILLED_SECONDS", 0.1)
    spool, place, ended = tmp_path / "spool", tmp_path / "target", threading.Event()
    published, second = Published(spool), threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        first = threads.submit(deliver, spool, str(place), functools.partial(DirectoryTarget, place), ended)
        try:
            wait_until(lambda: first.done() or (spool / "delivered.json").exists(), "the base", 60)
            with pytest.raises(UserError, match="process [0-9]+ on host .* delivers it already"):
                deliver(spool, "other", second.set, second)
        finally:
            ended.set()
        first.result(60)
    deliver(spool, str(place), functools.partial(DirectoryTarget, place), ended)
    assert_there(place, published)


def test_another_model_is_refused_and_other_inputs_too_unless_asked_for(tmp_path, target, caplog):
    before = {"age": "number", "item": "text", "place": "text", "spare": "", "tags": "texts"}
    published = Published(tmp_path / "a", inputs=before)
    deliver_all(tmp_path / "a", target)
    harmless = {**before, "tags": ""}  # It no longer reads the tags, which clients may still send.
    published = Published(tmp_path / "b", holder="b", inputs=harmless)
    deliver_all(tmp_path / "b", target)
    other = {"age": "text", "item": "text", "price": "number", "tags": "texts"}
    change = "have to add 'price' (number); add 'tags' (texts); send 'age' as text, not as number; leave out 'place'; "
    replacing = Published(tmp_path / "c", holder="c", rows=[1], inputs=other)
    with pytest.raises(UserError, match=re.escape(f"{change}leave out 'spare'. Publish to another place, or with the")):
        deliver_all(tmp_path / "c", target)
    assert change in read_status(tmp_path / "c").problem
    another = dataclasses.replace(replacing.record, model="dcn")
    records.write_record(tmp_path / "c", another)
    with pytest.raises(UserError, match="a publication of the model 'deepfm'.*'dcn'.*delete its directories"):
        deliver_all(tmp_path / "c", target)
    assert_there(tmp_path / "target", published, generation=2)
    replacing = Published(tmp_path / "d", holder="d", rows=[1], inputs=other, change_inputs=True)
    deliver_all(tmp_path / "d", target)
    assert change in caplog.text
    assert_there(tmp_path / "target", replacing, generation=3)


def test_a_publisher_that_comes_back_after_another_asks_for_a_base(tmp_path, target):
    first = Published(tmp_path / "first", holder="a")
    deliver_all(tmp_path / "first", target)
    first.epoch([1])
    deliver_all(tmp_path / "first", target)
    second = Published(tmp_path / "second", holder="b")
    deliver_all(tmp_path / "second", target)
    first.epoch([2])
    with pytest.raises(NeedsBase, match="the target has another generation or none"):
        Delivery(tmp_path / "first", lambda: target).step()
    said = read_status(tmp_path / "first")
    assert (said.generation, said.needs_base) == (1, True)
    assert_there(tmp_path / "target", second, generation=2)


def test_a_target_that_lost_its_files_asks_for_a_base(tmp_path, target):
    spool, generation = tmp_path / "spool", tmp_path / "target" / "generation-0000000001"
    published = Published(spool)
    published.epoch([1])
    deliver_all(spool, target)
    (generation / "base-0000000000.json").unlink()
    target.close()
    published.epoch([2])
    with contextlib.closing(DirectoryTarget(tmp_path / "target")) as fresh:
        with pytest.raises(NeedsBase, match="the target has another generation or none"):
            Delivery(spool, lambda: fresh).step()
        published = Published(spool, generation=2, holder="b")
        deliver_all(spool, fresh)
        shutil.rmtree(generation.with_name("generation-0000000002"))
        published.epoch([2])
        with pytest.raises(NeedsBase, match="base-0000000000.json is gone: all rows must be published again"):
            Delivery(spool, lambda: fresh).step()
        assert read_status(spool).needs_base
        published = Published(spool, generation=3, holder="c")
        deliver_all(spool, fresh)
        assert_there(tmp_path / "target", published)


def test_a_damaged_epoch_of_the_spool_is_named_and_not_delivered(tmp_path, target):
    spool = tmp_path / "spool"
    published = Published(spool)
    deliver_all(spool, target)
    published.epoch([1])
    rows = spool / "generation-0000000001" / "epoch-0000000001" / "dim3-00000-of-00001.rows.arrow"
    whole = rows.read_bytes()
    rows.write_bytes(whole[:-1])
    delivery = Delivery(spool, lambda: target)
    with pytest.raises(UserError, match="epoch-0000000001"):
        delivery.step()
    assert "epoch-0000000001" in read_status(spool).problem
    rows.write_bytes(whole)
    assert delivery.step().epoch == 1
    assert read_status(spool).problem == ""


def test_a_status_that_could_not_be_written_is_written_at_the_next_step(tmp_path, target, monkeypatch):
    spool, failures = tmp_path / "spool", [OSError(errno.ENOSPC, "full")]
    published = Published(spool)
    deliver_all(spool, target)
    published.epoch([1])

    def write(*arguments):
        if failures:
            raise failures.pop()
        write_status(*arguments)

    monkeypatch.setattr("ctr_trainer.live.publication.delivery.write_status", write)
    delivery = Delivery(spool, lambda: target)
    with pytest.raises(OSError, match="full"):
        delivery.step()
    assert delivery.step() is None
    assert read_status(spool).epoch == 1


def test_epochs_become_a_base_when_they_are_as_large_and_readers_continue(tmp_path, target, monkeypatch):
    monkeypatch.setattr(directory_target, "_LEAST_EPOCHS", 3)
    spool, place = tmp_path / "spool", tmp_path / "target"
    published = Published(spool)
    deliver_all(spool, target)
    reader = open_reader(place)
    for number in range(3):
        published.epoch([*range(1, 8), 10 + number], [9 + number] if number else [])
    deliver_all(spool, target)
    target.tidy()
    assert names(place / "generation-0000000001") == [
        "base-0000000003",
        "base-0000000003.json",
        "dense-0000000003",
    ]
    assert_there(place, published)
    assert records.read_record(place, 1, "base", 3).rows == len(published.state)
    published.epoch([13])
    deliver_all(spool, target)
    assert_there(place, published)
    assert reader.refresh().epoch == 4
    reader.advance()
    np.testing.assert_array_equal(reader.read("dim3", KEYS)[0], published.weights(KEYS))
    reader.close()


def test_a_merge_that_fails_leaves_no_files(tmp_path, target, monkeypatch):
    monkeypatch.setattr(directory_target, "_MOST_EPOCHS", 1)
    spool, place = tmp_path / "spool", tmp_path / "target"
    published = Published(spool)
    published.epoch([1])
    deliver_all(spool, target)
    before = names(place / "generation-0000000001")

    def refuse(*_):
        raise UserError("full")

    with monkeypatch.context() as full:
        full.setattr(records, "write_record", refuse)
        with pytest.raises(UserError, match="full"):
            target.tidy()
    assert names(place / "generation-0000000001") == before
    target.tidy()
    assert_there(place, published)


@pytest.mark.integration
def test_a_store_is_a_target_and_is_read(store, tmp_path):
    spool, url = tmp_path / "spool", f"s3://{object_store.BUCKET}/ctr"
    published, target = Published(spool), DirectoryTarget(url)
    published.epoch([2, 11], [3])
    deliver_all(spool, target)
    assert_there(url, published)
    with contextlib.closing(open_reader(url)) as reader:
        published.epoch([3], [11])
        deliver_all(spool, target)
        assert reader.refresh().epoch == 2
        reader.advance()
        np.testing.assert_array_equal(reader.read("dim3", KEYS)[0], published.weights(KEYS))
    target.close()
    assert store.keys("ctr/.lock") == []


def test_a_jump_of_the_clock_removes_nothing_that_is_read(tmp_path, monkeypatch, target):
    """Old records go when the directory itself is seen to have grown older by the grace."""
    target._grace = 600.0
    spool, url = tmp_path / "spool", tmp_path / "target"
    Published(spool, generation=1, holder="a")
    deliver_all(spool, target)
    published = Published(spool, generation=2, holder="b")
    deliver_all(spool, target)
    now = time.time()
    for jump in (1e6, -1e6):
        monkeypatch.setattr(time, "time", lambda jump=jump: now + jump)
        target.tidy()
        assert len(list(url.glob("generation-*"))) == 2
    for path in url.rglob("*.json"):
        os.utime(path, (now - 700, now - 700))
    published.epoch([1], [])
    deliver_all(spool, target)
    target.tidy()
    assert len(list(url.glob("generation-*"))) == 1


def test_what_precedes_an_old_base_goes_although_a_newer_base_is_young(tmp_path):
    published = Published(tmp_path)
    for key in (1, 2):
        published.epoch([key])
        published.base()
    old = time.time() - 700
    os.utime(tmp_path / "generation-0000000001" / "base-0000000001.json", (old, old))
    with contextlib.closing(DirectoryTarget(tmp_path)) as target:
        target.tidy()
    assert records.list_records(tmp_path, 1) == [("base", 1), ("epoch", 2), ("base", 2)]
    assert_there(tmp_path, published)
