import os

import pytest

from ctr_trainer.ranks import distributed


@pytest.mark.parametrize(
    ("services", "steps_wait", "cores"),
    [(1, False, {2, 3}), (2, False, {2, 3}), (3, False, {0, 1, 2, 3}), (1, True, {0, 1, 2, 3})],
    ids=["one", "two", "more than cores", "beside workers that wait for each other at each step"],
)
def test_services_leave_the_cores_of_the_syncing_worker_free(monkeypatch, services, steps_wait, cores):
    monkeypatch.setattr(distributed, "_all_cores", {0, 1, 2, 3})
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    assert distributed.service_cores(services, steps_wait) == cores


def test_services_of_a_worker_that_is_not_pinned_are_not_pinned(monkeypatch):
    monkeypatch.setattr(distributed, "_all_cores", None)
    assert distributed.service_cores(1, steps_wait=True) is None
