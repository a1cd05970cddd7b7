import pytest

from ctr_trainer.ranks import distributed
from tests import small


@pytest.fixture(scope="module", autouse=True)
def _one_worker():
    distributed.init()


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """The path of a converted data set of 320 rows, which is 10 batches of 32."""
    return small.make(tmp_path_factory.mktemp("data"), rows=320)
