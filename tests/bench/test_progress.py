"""How far a benchmark is, and how long it still takes."""

import pytest

from ctr_trainer.bench.jobs import Job, Progress

ALONE, FOUR = Job("alone", 1, (), 4, 2), Job("four", 4, (), 4, 2)


def test_four_workers_on_two_cores_count_as_two_runs_of_one_and_the_pace_is_that_of_the_runs_so_far():
    seconds = iter([100.0, 110.0, 200.0, 250.0])
    progress = Progress([ALONE, FOUR], 2, cores=2, clock=lambda: next(seconds))
    assert progress.seconds_left() == 2 * (1 + 2) * 12.0  # A guess, as nothing has run.
    progress.begin("alone")
    progress.end("alone")
    assert progress.seconds_left() == (2 + 1 + 2) * 10.0
    progress.begin("four")
    progress.end("four")
    assert progress.seconds_left() == pytest.approx((1 + 2) * 60.0 / 3)


def test_a_run_that_will_not_be_takes_no_time():
    seconds = iter([0.0, 40.0])
    progress = Progress([ALONE, FOUR], 2, cores=2, clock=lambda: next(seconds))
    progress.begin("four")
    progress.end("four")
    progress.skip("four")
    assert progress.seconds_left() == (1 + 1) * 20.0


def test_without_a_terminal_each_run_has_a_line_with_the_time_left(capsys):
    seconds = iter([0.0, 70.0, 70.0, 80.0])
    with Progress([ALONE, FOUR], 1, cores=2, clock=lambda: next(seconds)) as progress:
        for job in (ALONE, FOUR):
            progress.begin(job.name)
            progress.end(job.name)
    assert capsys.readouterr().err.splitlines() == [
        "2 runs, about 36 s if nothing else runs here",
        "run 1 of 2, alone; about 36 s left",
        "run 2 of 2, four; about 2 min 20 s left",
    ]
