import concurrent.futures
import contextlib
import errno
import os
import shutil
import threading

import numpy as np
import pytest

from ctr_trainer.live.publication import records
from ctr_trainer.live.publication.places import open_reader
from ctr_trainer.system.messages.errors import UserError
from tests.publication.published import KEYS, Published, tower_of


@pytest.fixture
def reading():
    """f(url) -> a reader of a publication that is closed with the test."""
    with contextlib.ExitStack() as readers:
        yield lambda url: readers.enter_context(contextlib.closing(open_reader(url)))


def assert_serves(reader, published, state=None):
    weights, found = reader.read("dim3", KEYS)
    np.testing.assert_array_equal(weights, published.weights(KEYS, state))
    np.testing.assert_array_equal(found, np.isin(KEYS, list(published.state if state is None else state)))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_a_reader_begins_with_the_newest_base_and_all_epochs_after_it(tmp_path, reading, dtype):
    published = Published(tmp_path, dtype=dtype)
    published.epoch([2, 11], [3])
    published.base()
    published.epoch([3, 4], [11])
    reader = reading(tmp_path)
    assert (reader.record.epoch, tower_of(reader)) == (2, "tower 1 2")
    assert_serves(reader, published)
    assert not reader.read("dim3", np.array([11, 99]))[0][:, 0].any()


def test_rows_and_tower_of_newer_records_are_served_together_by_advance(tmp_path, reading):
    published = Published(tmp_path)
    reader = reading(tmp_path)
    assert reader.refresh() is None
    before = dict(published.state)
    published.epoch([2, 11], [3])
    newer = reader.refresh()
    assert (newer.epoch, reader.record.epoch) == (1, 0)
    assert (tower_of(reader), tower_of(reader, newer)) == ("tower 1 0", "tower 1 1")
    assert reader.refresh() is newer
    assert_serves(reader, published, before)
    reader.advance()
    assert reader.record is newer
    assert_serves(reader, published)
    assert reader.refresh() is None
    assert_serves(reader, published)
    after_first = dict(published.state)
    published.epoch([2, 12], [4])
    assert reader.refresh().epoch == 2  # And no advance: its tower cannot be used.
    published.epoch([3], [12, 2])
    newest = reader.refresh()
    assert newest.epoch == 3 and tower_of(reader, newest) == "tower 1 3"
    assert_serves(reader, published, after_first)
    reader.advance()
    assert_serves(reader, published)
    assert reader.refresh() is None
    assert_serves(reader, published)


def test_a_waiting_reader_notices_the_next_record_but_none_that_it_has_seen(tmp_path, reading):
    published = Published(tmp_path)
    reader, ended = reading(tmp_path), threading.Event()
    assert not reader.await_newer(0.01, ended)
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(reader.await_newer, 60.0, ended)
        published.epoch([2])
        assert waiting.result()
        reader.refresh()  # And no advance: the server refuses its tower.
        assert not reader.await_newer(0.01, ended)
        waiting = threads.submit(reader.await_newer, 60.0, ended)
        ended.set()
        assert not waiting.result()


def test_a_damaged_file_is_not_read_again_at_each_look_and_a_later_base_is(tmp_path, reading, monkeypatch):
    published = Published(tmp_path)
    reader, checked = reading(tmp_path), []
    published.epoch([1])
    rows = records.generation_path(tmp_path, 1) / "epoch-0000000001" / "dim3-00000-of-00001.rows.arrow"
    rows.write_bytes(rows.read_bytes()[:-3] + b"abc")
    check_file = records.check_file
    monkeypatch.setattr(records, "check_file", lambda *each: (checked.append(each), check_file(*each)))
    for _ in range(5):
        with pytest.raises(UserError, match="epoch-0000000001/dim3.*altered"):
            reader.refresh()
    assert len(checked) == 1 and reader.record.epoch == 0
    before = dict.fromkeys(published.state, 0)
    published.epoch([2])
    published.base()
    assert reader.refresh().epoch == 2
    assert_serves(reader, published, before)
    reader.advance()
    assert_serves(reader, published)


def test_a_gap_without_a_newer_base_is_refused_by_name(tmp_path, reading):
    published = Published(tmp_path)
    reader, before = reading(tmp_path), dict(published.state)
    published.epoch([1])
    published.epoch([2])
    (records.generation_path(tmp_path, 1) / "epoch-0000000001.json").unlink()
    with pytest.raises(UserError, match="epoch 1 is missing"):
        reader.refresh()
    assert reader.record.epoch == 0
    assert_serves(reader, published, before)


@pytest.mark.parametrize("emptied", [False, True])
def test_a_new_generation_takes_the_place_of_the_one_before(tmp_path, reading, emptied):
    first = Published(tmp_path)
    first.epoch([1, 30])
    reader = reading(tmp_path)
    before = dict(first.state)
    if emptied:  # Its number is used again.
        shutil.rmtree(tmp_path / "generation-0000000001")
    generation = 1 if emptied else 2
    second = Published(tmp_path, generation, holder="b", rows=[5, 6], time=5.0)
    newer = reader.refresh()
    assert (newer.generation, newer.epoch, newer.time) == (generation, 0, 5.0)
    assert tower_of(reader, newer) == f"tower {generation} 0"
    assert_serves(reader, first, before)
    reader.advance()
    assert_serves(reader, second)


def test_a_large_table_grows_and_keeps_its_rows(tmp_path, reading):
    published = Published(tmp_path, rows=range(1, 5000))
    for first in (4000, 9000):
        published.epoch(range(first, first + 9000), range(1, 100))
    reader, keys = reading(tmp_path), np.arange(1, 20_000)
    np.testing.assert_array_equal(reader.read("dim3", keys)[0], published.weights(keys))


def test_what_is_no_publication_is_said(tmp_path, reading):
    with pytest.raises(UserError, match="there is no publication"):
        reading(tmp_path)


def test_rows_that_find_no_room_are_served_until_there_is_some(tmp_path, reading, monkeypatch):
    published = Published(tmp_path)
    reader = reading(tmp_path)
    published.epoch(range(5, 2000), [1])
    reader.refresh()
    reader.advance()

    def refuse(*_):
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as full:
        full.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(UserError, match="the rows of the table dim3: full; make room"):
            reader.refresh()
        assert_serves(reader, published)
    assert reader.refresh() is None
    assert_serves(reader, published)
