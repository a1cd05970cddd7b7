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


# Iterators over items, by what is ahead of the consumer.
WAYS = {
    f"{number} workers": lambda items, number=number, **more: OrderedMap(
        workers(lambda item: item, number), items, NAME, **more
    )
    for number in (1, 2, 3, 20)
}
WAYS |= {f"depth {d}": lambda items, d=d: read_ahead(items, d, NAME) for d in (0, 1, 3)}


@pytest.mark.parametrize("way", WAYS)
def test_items_come_in_order(way):
    items = WAYS[way](range(10))
    assert list(items) == list(range(10))
    assert next(items, None) is None and not threads()


@pytest.mark.parametrize(
    ("way", "most"), [("1 workers", 3), ("2 workers", 4), ("3 workers", 5), ("depth 1", 3), ("depth 3", 5)]
)
def test_no_more_items_are_begun_than_may_wait(way, most):
    """One is taken; one more than there are workers, or one more than may wait, are ahead."""
    begun, at_limit = [], threading.Event()

    def items():
        for item in itertools.count():
            begun.append(item)
            if len(begun) == most:
                at_limit.set()
            yield item

    with WAYS[way](items()) as results:
        assert next(results) == 0
        assert at_limit.wait(30)
        results.close()
        assert len(begun) == most
    assert list(results) == []


@pytest.mark.parametrize("way", ["1 workers", "2 workers"])
def test_a_wait_that_is_too_long_names_what_it_waits_for(way):
    release = threading.Event()

    def stuck():
        release.wait(30)
        yield 1

    with WAYS[way](stuck(), timeout=0.05) as results:
        with pytest.raises(UserError, match="mapping the moon: no progress for 0.05 s"):
            next(results)
        release.set()
        for thread in threads():
            thread.join(30)


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


@pytest.mark.parametrize("depth", [0, 1])
def test_close_ends_the_thread_and_the_generator_in_the_thread_that_ran_it(depth):
    ran_in, closed_in = [], []

    def items():
        try:
            for item in itertools.count():
                ran_in.append(threading.get_ident())
                yield item
        finally:
            closed_in.append(threading.get_ident())

    prefetch = read_ahead(items(), depth, NAME)
    next(prefetch)
    prefetch.close()
    assert closed_in == [ran_in[0]] and (ran_in[0] == threading.get_ident()) == (depth == 0)
    assert not threads()
    prefetch.close()
