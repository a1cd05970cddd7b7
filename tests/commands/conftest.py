import pytest

from ctr_trainer.ranks import distributed
from tests import small


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """The path of a converted data set of 300 rows."""
    distributed.init()
    return small.make(tmp_path_factory.mktemp("commands"), rows=300)
