import json

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.checkpoint.checkpoint import latest_checkpoint
from ctr_trainer.ranks import distributed
from tests.parallel import launch
from tests.parallel.workers import uneven

pytestmark = pytest.mark.integration
BATCHES = (12, 9)


def test_a_collective_that_a_rank_does_not_reach_is_named_and_ends_the_job():
    """Rank 0 sleeps for longer than the launcher's timeout: the job ends only if rank 1 ends it.

    While rank 0 has worked, and said that it goes on, rank 1 has waited for longer than the stall timeout.
    """
    done = launch.run(2, launch.WORKERS / "chief_works.py", check=False)
    output = done.stdout + done.stderr
    assert done.returncode != 0
    assert "rank 0 got 15" in output and "rank 1 got 15" in output
    assert "rank 1 has waited" in output
    assert "for the other ranks in barrier.never_met" in output


@pytest.fixture(scope="module")
def uneven_job(tmp_path_factory):
    """The (directory, standard error) of a job that trains with inputs of two lengths and fails at the end.

    With status 1: the same command would end the same way, so a launcher does not start it again.
    """
    directory = tmp_path_factory.mktemp("uneven")
    done = launch.run(2, launch.WORKERS / "uneven.py", directory, *BATCHES, check=False)
    assert "Process 0 exit with status code 1." in done.stdout + done.stderr
    return directory, done.stderr


def test_an_input_that_ends_early_on_one_rank_ends_the_job_with_its_step(uneven_job):
    directory, said = uneven_job
    rank, line = launch.last_line(said)
    assert rank == 0
    assert line.startswith(
        "error: rank 1 has no batch for step 10: its input has ended after 9 batches, and rank 0 has read 10."
    )
    assert "of step 8: the same command resumes from it" in line
    assert "Traceback" not in said
    assert latest_checkpoint(directory / "error").step == 8


@pytest.mark.slow
def test_the_loop_of_a_program_whose_input_ends_early_on_one_rank_ends_too(tmp_path):
    done = launch.run(2, launch.WORKERS / "uneven.py", "own_loop", tmp_path, *BATCHES, check=False)
    assert "rank 1 has no batch for step 10: its input has ended after 9 batches, and rank 0 has read 10" in done.stderr


def test_shorter_inputs_are_padded_so_that_every_row_counts_once(uneven_job, tmp_path):
    distributed.init()
    alone = uneven.train(tmp_path, "pad", BATCHES)
    two = json.loads((uneven_job[0] / "pad.json").read_text())
    assert two["global_step"] == alone["global_step"] == 12
    assert two["auc"] == alone["auc"]
    found, expected = (
        tf.train.load_checkpoint(latest_checkpoint(directory / "pad").dense_prefix)
        for directory in (uneven_job[0], tmp_path)
    )
    for name in expected.get_variable_to_shape_map():
        np.testing.assert_allclose(found.get_tensor(name), expected.get_tensor(name), atol=1e-5)
