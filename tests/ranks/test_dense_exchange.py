import os
import subprocess
import sys

import pytest

from ctr_trainer.ranks import dense_exchange


@pytest.mark.parametrize(
    ("how", "here", "workers", "expected"),
    [
        ("auto", None, None, False),  # Not under horovodrun: a lone worker.
        ("horovod", 1, 1, False),
        ("auto", 2, 2, False),
        ("shared_memory", 2, 2, False),
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
    assert dense_exchange.is_by_horovod(how) == expected


def test_what_horovodrun_is_told_of_the_exchange_has_it_go_through_horovod(monkeypatch):
    for name in ("LOCAL_SIZE", "SIZE"):
        monkeypatch.setenv(f"HOROVOD_{name}", "2")
    code = "from ctr_trainer.ranks import dense_exchange; print(dense_exchange.is_by_horovod('auto'))"
    found = {}
    for setting in ("", *dense_exchange.SETTINGS[:1]):
        # Without those that `distributed.init` of an earlier test has set in this process.
        others = {name: value for name, value in os.environ.items() if name not in dense_exchange.SETTINGS}
        environment = {**others, **({setting: "1"} if setting else {})}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        found[setting] = done.stdout.strip()
    assert found == {"": "False", "HOROVOD_AUTOTUNE": "True"}
    monkeypatch.setattr(dense_exchange, "_asked", ["HOROVOD_TIMELINE"])
    assert dense_exchange.is_by_horovod("auto")
    assert not dense_exchange.is_by_horovod("shared_memory")
