import itertools
import threading
import traceback

import pytest

from ctr_trainer.data.read_ahead import read_ahead
from ctr_trainer.messages.errors import UserError


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_items_come_in_order(depth):
    assert list(read_ahead(range(10), depth)) == list(range(10))


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_an_exception_comes_after_the_items_before_it_with_its_traceback(depth):
    def broken():
        yield 1
        raise ZeroDivisionError("here")

    items = read_ahead(broken(), depth)
    assert next(items) == 1
    with pytest.raises(ZeroDivisionError, match="here") as error:
        next(items)
    assert "broken" in [frame.name for frame in traceback.extract_tb(error.value.__traceback__)]
    assert list(items) == []


def test_no_more_than_depth_items_wait():
    made, at_limit = [], threading.Event()

    def items():
        for i in itertools.count():
            made.append(i)
            if i == 3:
                at_limit.set()  # one taken, two waiting, one in hand
            yield i

    with read_ahead(items(), 2) as prefetch:
        assert next(prefetch) == 0
        assert at_limit.wait(30)
        assert len(made) == 4
    assert list(prefetch) == []


@pytest.mark.parametrize("depth", [0, 1])
def test_close_ends_the_thread_and_the_generator(depth):
    closed = threading.Event()

    def items():
        try:
            yield from itertools.count()
        finally:
            closed.set()

    prefetch = read_ahead(items(), depth, name="closing")
    next(prefetch)
    prefetch.close()
    assert closed.is_set()
    assert not [t for t in threading.enumerate() if t.name == "closing"]
    prefetch.close()


def test_a_wait_that_is_too_long_names_what_it_waits_for():
    release = threading.Event()

    def stuck():
        release.wait(30)
        yield 1

    with read_ahead(stuck(), 1, name="reading the moon", timeout=0.2) as prefetch:
        with pytest.raises(UserError, match="reading the moon: nothing came for 0.2 s"):
            next(prefetch)
        release.set()
