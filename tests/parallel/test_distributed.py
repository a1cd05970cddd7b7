from tests.parallel import launch


def test_a_collective_that_a_rank_does_not_reach_is_named_and_ends_the_job():
    """Rank 0 sleeps for longer than the launcher's timeout: the job ends only if rank 1 ends it."""
    done = launch.run(2, launch.WORKERS / "stall.py", check=False)
    output = done.stdout + done.stderr
    assert done.returncode != 0
    assert "rank 1 has waited" in output
    assert "for the other ranks in barrier.never_met" in output
