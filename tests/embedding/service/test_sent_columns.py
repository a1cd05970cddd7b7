"""The columns of a request, through a socket and through memory."""

import os
import pathlib

import numpy as np
import pytest

from ctr_trainer.embedding.service import wire
from ctr_trainer.embedding.service.row_requests import ReceivedColumns, SentColumns
from ctr_trainer.system.messages.errors import ServiceLost, UserError

MANY = 20_000
LAYOUT = [("<i8", None), ("<f4", 3)]


def columns(count):
    return [np.arange(count), np.arange(3 * count, dtype=np.float32).reshape(count, 3)]


def arrived(body, received):
    """Returns the columns as the service reads them."""
    header, start = wire.unpack_header(body)
    if "memory" in header:
        body, start = received.read(header["memory"], header["bytes"]), 0
    return wire.unpack_columns(body, start, "clicks", header["count"], LAYOUT)


@pytest.fixture
def shared():
    sender = SentColumns()
    sender.share(lambda offer: True)
    yield sender
    sender.close()


def assert_equal(got, expected):
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("count", [0, 1, MANY])
def test_what_arrives_is_what_was_sent_either_way(shared, count):
    for sender in (SentColumns(), shared):
        with sender.sending({"op": "sync"}, columns(count)) as body:
            assert_equal(arrived(body, ReceivedColumns()), columns(count))


def test_many_columns_leave_only_their_place_in_the_request_and_few_go_along(shared):
    with shared.sending({"op": "sync"}, columns(MANY)) as body:
        assert len(body) < 500
        assert wire.unpack_header(body)[0]["bytes"] == MANY * (8 + 12)
    with shared.sending({"op": "sync"}, columns(10)) as body:
        assert "memory" not in wire.unpack_header(body)[0]


def test_a_request_beside_another_goes_inline_and_changes_nothing_of_it(shared):
    received = ReceivedColumns()
    with shared.sending({"op": "sync"}, columns(MANY)) as first:
        other = [-column for column in columns(MANY)]
        with shared.sending({"op": "sync"}, other) as second:
            assert_equal(arrived(second, received), other)
        assert_equal(arrived(first, received), columns(MANY))


def test_a_failed_request_keeps_its_memory_which_a_service_may_yet_read(shared):
    with shared.sending({"op": "sync"}, columns(MANY)) as done:
        assert "memory" in wire.unpack_header(done)[0]
    with pytest.raises(ServiceLost), shared.sending({"op": "sync"}, columns(MANY)) as failed:
        raise ServiceLost
    other = [-column for column in columns(MANY)]
    with shared.sending({"op": "sync"}, other) as later:
        assert_equal(arrived(later, ReceivedColumns()), other)
    assert_equal(arrived(failed, ReceivedColumns()), columns(MANY))


def test_a_wrong_size_or_address_of_shared_columns_is_refused(shared):
    with shared.sending({"op": "sync"}, columns(MANY)) as body:
        address = wire.unpack_header(body)[0]["memory"]
    for size in (-1, wire.MOST_BYTES * 2):
        with pytest.raises(UserError, match=f"a request of {size} bytes in memory that has"):
            ReceivedColumns().read(address, size)
    with pytest.raises(UserError, match="process id 999999999"):
        ReceivedColumns().read("999999999/0123456789ab", 64)


def test_memory_is_let_go(shared):
    received = ReceivedColumns()
    with shared.sending({"op": "sync"}, columns(MANY)) as body:
        address = wire.unpack_header(body)[0]["memory"]
        own = open_files(address)
        assert_equal(arrived(body, received), columns(MANY))
        assert open_files(address) > own
        received.forget()
        assert open_files(address) == own
        assert_equal(arrived(body, received), columns(MANY))  # It is opened anew.
    received.forget()


def open_files(address):
    """Returns the number of open files of this process that belong to this memory."""
    links = [link for link in pathlib.Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum(address.split("/")[1] in os.path.realpath(link) for link in links)
