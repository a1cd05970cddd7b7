import pytest

from ctr_trainer import dense_exchange


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
    for name, value in (("LOCAL_SIZE", here), ("SIZE", workers)):
        monkeypatch.delenv(f"HOROVOD_{name}", raising=False)
        if value:
            monkeypatch.setenv(f"HOROVOD_{name}", str(value))
    assert dense_exchange.is_by_horovod(how) == expected
