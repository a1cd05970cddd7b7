import pytest

from ctr_trainer.ranks import distributed


@pytest.fixture(scope="module", autouse=True)
def _one_worker():
    distributed.init()
