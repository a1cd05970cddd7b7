import json

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.estimator.checkpoint import latest_checkpoint
from tests.parallel import launch

pytestmark = pytest.mark.integration


def test_while_rank_0_goes_on_the_others_wait_and_no_longer():
    done = launch.run(2, launch.WORKERS / "chief_works.py", check=False)
    output = done.stdout + done.stderr
    assert done.returncode != 0
    assert "rank 0 got 25" in output and "rank 1 got 25" in output
    assert "its own work in standstill" in output or "the other ranks in standstill" in output


def test_a_collective_that_a_rank_does_not_reach_is_named_and_ends_the_job():
    """Rank 0 sleeps for longer than the launcher's timeout: the job ends only if rank 1 ends it."""
    done = launch.run(2, launch.WORKERS / "stall.py", check=False)
    output = done.stdout + done.stderr
    assert done.returncode != 0
    assert "rank 1 has waited" in output
    assert "for the other ranks in barrier.never_met" in output


def test_an_input_that_ends_earlier_on_one_rank_ends_the_job_at_once_with_the_rank_and_the_step(tmp_path):
    done = launch.run(2, launch.WORKERS / "uneven.py", tmp_path / "model", "error", 12, 9, check=False)
    assert done.returncode != 0
    rank, line = launch.last_line(done.stderr)
    assert rank == 0
    assert line.startswith(
        "error: rank 1 has no batch for step 10: its input has ended after 9 batches, and rank 0 has read 10."
    )
    assert "of step 8: the same command goes on from it" in line
    assert "Traceback" not in done.stderr
    assert latest_checkpoint(tmp_path / "model").step == 8


def test_shorter_inputs_are_padded_so_that_every_row_counts_once(tmp_path):
    results, variables = {}, {}
    for workers in (0, 2):
        model = tmp_path / str(workers)
        done = launch.run(workers, launch.WORKERS / "uneven.py", model, "pad", 12, 9)
        results[workers] = json.loads(done.stdout.partition("RESULT ")[2].splitlines()[0])
        variables[workers] = tf.train.load_checkpoint(latest_checkpoint(model).dense_prefix)
    assert results[2]["global_step"] == results[0]["global_step"] == 12
    assert results[2]["auc"] == results[0]["auc"]
    for name in variables[0].get_variable_to_shape_map():
        np.testing.assert_allclose(variables[2].get_tensor(name), variables[0].get_tensor(name), atol=1e-5)
