"""A small campaign of `benchmarks/serving_faults.py`: its JSON, and that it would see a wrong answer."""

import json
import pathlib

import numpy as np
import pytest

from tests import redis_cluster

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.skipif(redis_cluster.server_binary() is None, reason="there is no Redis and no Valkey")
def test_a_small_campaign_finds_no_wrong_answer(monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import serving_faults

    flags = ["--parts=cluster", "--rounds=1", "--faults=all flushed", "--rate=20"]
    monkeypatch.setattr("sys.argv", ["serving_faults.py", *flags])
    monkeypatch.setattr(serving_faults, "MORE_ROWS", 3000)
    serving_faults.main()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["wrong_answers"] == 0 and found["answers"] > 0 and found["refused"] > 0
    assert (found["losses"], found["losses_noticed"]) == (1, 1)
    assert found["requests_lost_at_sigterm"] is None and found["peak_mb_per_request"] is None
    assert found["rounds"] == {"all flushed": 1} and found["left_out"] == ["directory", "sigterm", "memory"]


def test_an_answer_of_another_model_than_its_headers_name_is_wrong(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import serving_load

    from tests.scoring.trained import Trained

    class Checkpoint:
        step = 7

    expected = [np.array([0.1, 0.2, 0.3]), np.array([0.5, 0.6, 0.7])]
    campaign = serving_load.Campaign(Trained(None, [Checkpoint, Checkpoint], [{}, {}, {}], expected), [], 1.0)
    campaign.close()
    campaign.number_of = {(5, 0): 1}
    for record, found, is_right in [
        (("5", "0", "7"), [0.5, 0.7], True),
        (("5", "0", "7"), [0.5, 0.3], False),
        (("5", "0", "8"), [0.5, 0.7], False),
        (("6", "0", "7"), [0.5, 0.7], False),
    ]:
        answer = serving_load.Answer(200, record, np.array([0, 2]), np.array(found))
        assert campaign._is_right(answer) == is_right
