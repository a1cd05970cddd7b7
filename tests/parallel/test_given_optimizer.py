"""Programs of tf.estimator's kind on one worker and on two, by optimizers of their own."""

import json

import numpy as np
import pytest

from tests.parallel import launch
from tests.parallel.workers import given_optimizer

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """By number of workers, by rank, what each program's variable became."""
    outs = {workers: tmp_path_factory.mktemp(f"given{workers}") for workers in (0, 2)}
    launch.run(2, launch.WORKERS / "given_optimizer.py", outs[2])
    given_optimizer.main(outs[0])
    return {
        workers: [json.loads((out / f"{rank}.json").read_text()) for rank in range(max(workers, 1))]
        for workers, out in outs.items()
    }


@pytest.mark.parametrize("name", ["auto", "horovod", "adam", "sparse"])
def test_three_examples_split_two_and_one_train_as_one_batch_does(trained, name):
    alone = trained[0][0][name]
    np.testing.assert_allclose(trained[2][0][name], alone, atol=1e-5, rtol=0)
    assert np.abs(np.array(alone) - 0.1).max() > 0.1


def test_variables_that_drift_apart_end_the_job_at_step_one_or_a_checkpoint(trained):
    for rank in trained[2]:
        for how, step, variable in (("lone", 1, "w"), ("partial", 1, "rows"), ("beside", 1, "w")):
            assert f"the workers no longer train one model: at step {step} these variables differ" in rank[how]
            assert f"between the 2 ranks: {variable} (by " in rank[how]
            assert "tf_estimator.DistributedOptimizer(optimizer).minimize(loss, global_step)" in rank[how]
            assert "EstimatorSpec(mode, loss=loss, optimizer=optimizer)" in rank[how]
    assert trained[0][0]["lone"] == trained[0][0]["horovod"]  # A lone worker needs no exchange.
    assert len(trained[0][0]["beside"]) == 4
    assert len(trained[2][0]["grouped"]) == 4  # Both are wrapped.
    np.testing.assert_allclose(trained[0][0]["partial"], trained[0][0]["grouped"])


def test_only_a_train_op_of_horovods_optimizer_is_taken(
    trained,
):
    """There the second step waited for ever, on both ranks."""
    assert len(trained[2][0]["distributed"]) == 4
    for rank in trained[2]:
        assert "hvd.DistributedOptimizer does with backward_passes_per_step" in rank["aggregated"]
    for rank in (*trained[0], *trained[2]):
        assert "is distributed already" in rank["twice"]
        assert "Adagrad: give one of tf.compat.v1.train" in rank["keras"]
