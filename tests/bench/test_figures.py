"""Figures of several rounds as text, and how far a benchmark is."""

import json

import pytest

from ctr_trainer.bench import report
from ctr_trainer.bench.jobs import Job, Progress
from ctr_trainer.bench.report import Figure, cell, describe, figure
from ctr_trainer.commands.reports.comparison import format_table


def test_a_figure_is_the_median_and_its_range():
    rate = Figure((100.0, 1300.0, 250.4))
    assert f"{rate:,.0f}" == "250 (100-1,300)"
    assert rate.to_dict() == {"median": 250.4, "min": 100.0, "max": 1300.0, "values": [100.0, 1300.0, 250.4]}
    assert f"{Figure((0.5,)):.0%}" == "50%"


def test_a_round_without_a_figure_does_not_count_and_none_at_all_is_a_dash():
    assert figure([None, 3.0]) == Figure((3.0,))
    assert figure([None]) is None
    cells = [cell(value, ".1f") for value in (None, "text", 2.0, Figure((2.0,)))]
    assert cells == ["-", "text", "2.0", "2.0"]


def test_the_first_column_stands_left_and_the_others_right():
    assert format_table(["", "1 worker"], [["a batch, ms", "8.25"], ["sync", "-"]]) == [
        "             1 worker",
        "a batch, ms      8.25",
        "sync                -",
    ]


@pytest.mark.parametrize(("load", "said"), [(2.5, True), (2.0, False)])
def test_the_title_of_a_table_says_that_the_machine_was_busy_before_it(tmp_path, capsys, load, said):
    machine = {**describe(), "load": load, "cores": 2}
    report.write_report(str(tmp_path), "methods", machine, ["deepfm on W1"], {}, {}, {})
    title, *_ = (tmp_path / "methods.txt").read_text().splitlines()
    assert title == ("Measured at a load of 2.5 on 2 cores, so the times are unreliable:" if said else "deepfm on W1")
    assert capsys.readouterr().out.startswith(title)
    assert json.loads((tmp_path / "methods.json").read_text())["overloaded"] is said


ALONE, FOUR = Job("alone", 1, (), 4, 2), Job("four", 4, (), 4, 2)


def test_four_workers_on_two_cores_count_as_two_runs_of_one():
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
