import os

import pytest

from tests.parallel import launch


@pytest.fixture(autouse=True)
def _workers_without_scikit_learn(monkeypatch):
    """Has the jobs of a bench start as those of `launch` do."""
    monkeypatch.setenv("PYTHONPATH", str(launch.ABSENT), prepend=os.pathsep)
