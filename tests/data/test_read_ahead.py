"""Work in background threads: order, errors, time limits, closing."""

import itertools
import threading
import traceback

import pytest

from ctr_trainer.data.read_ahead import OrderedMap, read_ahead
from ctr_trainer.system.messages.errors import UserError

NAME = "mapping the moon"


def workers(function, number):
    return [function] * number


def threads():
    return [thread for thread in threading.enumerate() if thread.name == NAME]


@pytest.mark.parametrize("number", [1, 2, 3, 20])
def test_results_come_in_the_items_order(number):
    squares = OrderedMap(workers(lambda i: i * i, number), range(10), NAME)
    assert list(squares) == [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]
    assert next(squares, None) is None and not threads()


def test_a_result_that_is_done_first_waits_for_those_before_it():
    second_is_done = threading.Event()

    def work(item):
        if item == 0:
            assert second_is_done.wait(30)
        elif item == 1:
            second_is_done.set()
        return item

    with OrderedMap(workers(work, 2), range(3), NAME) as results:
        assert list(results) == [0, 1, 2]


def test_as_many_items_are_in_the_making_at_once_as_there_are_workers():
    all_three = threading.Barrier(3)
    with OrderedMap(workers(lambda item: all_three.wait(30), 3), range(3), NAME) as results:
        assert sorted(results) == [0, 1, 2]  # Each thread's place at the barrier.


@pytest.mark.parametrize("number", [1, 2, 3])
def test_of_k_workers_results_one_more_than_k_are_begun(number):
    begun, at_limit = [], threading.Event()

    def work(item):
        begun.append(item)
        if len(begun) == number + 2:
            at_limit.set()
        return item

    with OrderedMap(workers(work, number), itertools.count(), NAME) as results:
        assert next(results) == 0
        assert at_limit.wait(30)
        results.close()
        assert sorted(begun) == list(range(number + 2))  # One taken and number + 1 ahead.


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_exception_comes_after_the_results_before_it_with_its_traceback(number):
    def broken(item):
        if item == 3:
            raise ZeroDivisionError("here")
        return item

    results = OrderedMap(workers(broken, number), itertools.count(), NAME)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ZeroDivisionError, match="here") as error:
        next(results)
    assert "broken" in [frame.name for frame in traceback.extract_tb(error.value.__traceback__)]
    assert list(results) == [] and not threads()


@pytest.mark.parametrize("number", [1, 2])
def test_an_exception_of_the_items_comes_after_the_results_before_it(number):
    def items():
        yield 0
        raise ZeroDivisionError("of the items")

    results = OrderedMap(workers(lambda item: item, number), items(), NAME)
    assert next(results) == 0
    with pytest.raises(ZeroDivisionError, match="of the items"):
        next(results)
    assert not threads()


@pytest.mark.parametrize("number", [1, 3])
def test_close_ends_all_threads_and_the_map_that_makes_the_items(number):
    items = OrderedMap(workers(lambda item: item, 1), itertools.count(), NAME)
    results = OrderedMap(workers(lambda item: item, number), items, NAME)
    next(results)
    assert len(threads()) == number + 1
    results.close()
    assert not threads()
    assert list(results) == list(items) == []
    results.close()


def test_a_map_that_waits_too_long_names_what_it_waits_for():
    release = threading.Event()
    with OrderedMap(workers(lambda item: release.wait(30), 2), range(2), NAME, timeout=0.01) as results:
        with pytest.raises(UserError, match="mapping the moon: no progress for 0.01 s"):
            next(results)
        release.set()
        for thread in threads():
            thread.join(30)


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
        with pytest.raises(UserError, match="reading the moon: no progress for 0.2 s"):
            next(prefetch)
        release.set()
