from ctr_trainer.estimator.checkpoint import latest_checkpoint
from tests.parallel import launch


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
    done = launch.run(2, launch.WORKERS / "uneven.py", tmp_path / "model", 12, 9, check=False)
    assert done.returncode != 0
    rank, line = launch.last_line(done.stderr)
    assert rank == 0
    assert line.startswith(
        "error: rank 1 has no batch for step 10: its input has ended after 9 batches, and rank 0 has read 10."
    )
    assert "of step 8: the same command goes on from it" in line
    assert "<stderr>:Traceback" not in done.stderr
    assert latest_checkpoint(tmp_path / "model").step == 8
