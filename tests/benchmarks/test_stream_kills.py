"""A small run of the part `kills` of `benchmarks/click_to_score.py`, and that it would see a wrong count."""

import numpy as np
import pyarrow as pa
import pytest
import stream_kills as kills

from ctr_trainer.features import hashing
from tests.stream import brokers


@pytest.mark.integration
@pytest.mark.slow
def test_a_kill_of_each_kind_loses_and_repeats_no_record(warm_python):
    brokers.require_kafka()
    found = kills.measure(kills=5, kill_secs=1.0, records=5000, held_out=2000)
    assert found["kill_runs"] == 5 and found["records"] == 5000
    assert (found["records_not_trained"], found["records_trained_twice"]) == (0, 0)
    assert found["requests_during_kills"] > 0 and found["requests_failed_during_kills"] == 0
    assert found["restarts"] >= 1 and abs(found["auc_minus_undisturbed"]) < 0.5


def test_a_record_without_a_step_is_not_trained_and_too_many_are_twice():
    names = ["once", "twice", "never", "no step", "repeated", "repeated"]
    steps = {"once": 1.0, "twice": 2.0, "no step": 0.0, "repeated": 2.001, "another": 7.0}
    keys = hashing.keys(kills.OWN, pa.array(list(steps)))
    order = np.argsort(keys)
    assert kills.count(names, keys[order], np.array(list(steps.values()))[order]) == (2, 1)
    with pytest.raises(SystemExit, match="no whole numbers"):
        kills.count(["once"], keys[:1], np.array([1.5]))


def test_the_steps_of_a_row_are_told_by_the_bias_correction_of_adam(monkeypatch):
    class Config:
        weights, dims = 3, (2, 1)  # Two weights and one; m, m, v, v, c1, c2; m, v, c1, c2.

    rows = np.zeros((3, 13), np.float32)
    rows[:, 7] = [0.0, 0.1, 0.271]
    monkeypatch.setattr(kills.snapshot, "iterate", lambda path, tables: iter([(Config, np.array([5, 9, 2]), rows)]))

    class Checkpoint:
        path, tables = None, None

    keys, steps = kills.steps_by_key(Checkpoint)
    assert keys.tolist() == [2, 5, 9]
    np.testing.assert_allclose(steps, [3, 0, 1], atol=1e-5)
