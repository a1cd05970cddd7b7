import importlib.util

import pytest

from ctr_trainer.ranks import dense_exchange


@pytest.mark.parametrize(
    ("how", "here", "workers", "expected"),
    [
        ("auto", None, None, False),  # Not under horovodrun: a lone worker.
        ("horovod", 1, 1, False),
        ("auto", 2, 2, False),
        ("horovod", 2, 2, True),
        ("auto", 2, 4, True),
    ],
)
def test_steps_wait_for_horovod_where_the_workers_share_no_memory(how, here, workers, expected, monkeypatch):
    monkeypatch.setattr(dense_exchange, "_asked", [])
    for name, value in (("LOCAL_SIZE", here), ("SIZE", workers)):
        monkeypatch.delenv(f"HOROVOD_{name}", raising=False)
        if value:
            monkeypatch.setenv(f"HOROVOD_{name}", str(value))
    assert (dense_exchange.exchange(how).way == "horovod") == expected


def test_what_horovodrun_is_told_of_the_exchange_has_it_go_through_horovod(monkeypatch):
    # Without those that `distributed.init` of an earlier test has set in this process.
    for name in dense_exchange.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    for name in ("LOCAL_SIZE", "SIZE"):
        monkeypatch.setenv(f"HOROVOD_{name}", "2")
    found = {}
    for setting in ("HOROVOD_NOTHING", "HOROVOD_AUTOTUNE"):
        monkeypatch.setenv(setting, "1")
        spec = importlib.util.spec_from_file_location("started_anew", dense_exchange.__file__)
        anew = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(anew)
        found[setting] = anew.exchange().way == "horovod"
    assert found == {"HOROVOD_NOTHING": False, "HOROVOD_AUTOTUNE": True}
    monkeypatch.setattr(dense_exchange, "_asked", ["HOROVOD_TIMELINE"])
    assert dense_exchange.exchange().way == "horovod"
