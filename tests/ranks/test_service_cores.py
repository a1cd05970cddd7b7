import os

import pytest

from ctr_trainer.ranks import distributed

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system pins no processes to cores")


@pytest.mark.parametrize(
    ("services", "cores"), [(1, {2, 3}), (2, {2, 3}), (3, {0, 1, 2, 3})], ids=["one", "two", "more than cores"]
)
def test_services_leave_the_cores_of_the_worker_that_syncs_free_if_the_others_have_enough(monkeypatch, services, cores):
    monkeypatch.setattr(distributed, "_all_cores", {0, 1, 2, 3})
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    assert distributed.service_cores(services) == cores


def test_services_of_a_worker_that_is_not_pinned_are_not_pinned(monkeypatch):
    monkeypatch.setattr(distributed, "_all_cores", None)
    assert distributed.service_cores(1) is None
