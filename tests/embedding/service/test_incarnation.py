"""The name of a service's rows, while they are replaced."""

import threading

import pytest

from ctr_trainer.embedding.service import lease
from ctr_trainer.embedding.service.lease import Incarnation, Replaced
from ctr_trainer.system.messages.errors import Lost


def test_rows_that_were_not_replaced_in_time_keep_their_name(monkeypatch):
    monkeypatch.setattr(lease, "_WAIT_SECONDS", 0.01)
    rows = Incarnation()
    before = str(rows)
    with rows.within(before):
        with pytest.raises(Lost, match="a request has held the rows for 0.01 s"):
            with rows.replaced("never"):
                raise AssertionError("a request is under way")
    rows.check(before)
    with rows.replaced("restored"):
        during = str(rows)
        for expected in (before, during):
            with pytest.raises(Replaced, match="restored"):
                rows.check(expected)
    with pytest.raises(Replaced):
        rows.check(during)
    rows.check(str(rows))


def test_two_threads_replace_the_rows_one_after_the_other():
    rows, inside, released = Incarnation(), [], threading.Event()

    def replace():
        with rows.replaced("restored"):
            inside.append(threading.current_thread())
            released.wait(60)
            inside.remove(threading.current_thread())

    threads = [threading.Thread(target=replace) for _ in range(2)]
    for thread in threads:
        thread.start()
    while not inside:
        pass
    with pytest.raises(Replaced):
        rows.check(str(rows))
    assert len(inside) == 1
    released.set()
    for thread in threads:
        thread.join(60)
    rows.check(str(rows))


def test_a_request_that_names_no_rows_waits_for_none_to_be_replaced(monkeypatch):
    monkeypatch.setattr(lease, "_WAIT_SECONDS", 0.01)
    rows = Incarnation()
    with rows.replaced("restored"):
        with pytest.raises(Replaced, match="restored"), rows.within(None):
            raise AssertionError("the rows are incomplete")
    with rows.within(None), pytest.raises(Lost), rows.replaced("never"):
        raise AssertionError("a request is under way")
    with rows.replaced("restored again"):
        pass
