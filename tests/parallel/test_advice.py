"""The advice at the end of a job that is slow for a known reason."""

import json

import pytest

from tests import small
from tests.parallel import launch

pytestmark = pytest.mark.integration


def test_a_rank_that_sleeps_in_its_steps_is_named_with_where(tmp_path):
    data, out = small.make(tmp_path, rows=2560), tmp_path / "advice.json"
    launch.run(2, launch.WORKERS / "advice.py", data, tmp_path / "model", out)
    advice = json.loads(out.read_text())
    assert advice["flag"] == "a faster rank 1"
    assert advice["share"] > 0.25 and "mostly for its metrics and logs" in advice["why"]
