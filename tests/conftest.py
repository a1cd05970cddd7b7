import os
import pathlib

import pytest


@pytest.fixture(scope="session")
def real_data():
    """The directory of the real data sets (movielens/, criteo/, adult/), which may not be redistributed."""
    beside = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"
    path = pathlib.Path(os.environ.get("CTR_TRAINER_TEST_DATA", beside))
    if not (path / "movielens" / "ratings.dat").exists():
        pytest.skip(
            f"no real data in {path}: MovieLens and Criteo may not be redistributed; set CTR_TRAINER_TEST_DATA to a "
            "directory with movielens/, criteo/ and adult/ to run this test"
        )
    return path
