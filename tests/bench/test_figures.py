"""Figures of several rounds, as text."""

from ctr_trainer.bench.figures import Figure, cell, figure, format_table


def test_a_figure_is_the_median_and_its_range():
    rate = Figure((100.0, 1300.0, 250.4))
    assert f"{rate:,.0f}" == "250 (100-1,300)"
    assert rate.to_dict() == {"median": 250.4, "min": 100.0, "max": 1300.0, "values": [100.0, 1300.0, 250.4]}
    assert f"{Figure((0.5,)):.0%}" == "50%"


def test_a_round_without_a_figure_does_not_count_and_none_at_all_is_a_dash():
    assert figure([None, 3.0]) == Figure((3.0,))
    assert figure([None]) is None
    assert [cell(None), cell("text"), cell(2.0, ".1f"), cell(Figure((2.0,)), ".1f")] == ["-", "text", "2.0", "2.0"]


def test_the_first_column_stands_left_and_the_others_right():
    assert format_table(["", "1 worker"], [["a batch, ms", "8.25"], ["sync", "-"]]) == [
        "             1 worker",
        "a batch, ms      8.25",
        "sync                -",
    ]
