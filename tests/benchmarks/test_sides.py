"""A comparison on a processor that lacks instructions which one of its sides needs."""

import pathlib

import pytest

from ctr_trainer.system.processes import hardware

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def scaling(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import scaling

    return scaling


def test_a_side_that_the_processor_cannot_run_is_left_out_by_name_and_its_ratio_is_null(
    scaling, tmp_path, monkeypatch, capsys
):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu avx avx2\n")
    # Stands for the script that trains.
    (tmp_path / "w1.py").write_text("print('worker: {\"examples_per_sec\": 10.0}')")
    monkeypatch.setattr("sides.HERE", tmp_path)
    both = {name: scaling.sides(steps=2)[name] for name in ("one", "one_bf16")}
    rates = scaling.compare(scaling.runnable(both, hardware.has_bfloat16(tmp_path / "cpuinfo")), rounds=2)
    assert rates == {"one": [10.0, 10.0]}
    assert (scaling.ratio(rates, "one", "one"), scaling.ratio(rates, "one_bf16", "one")) == (1.0, None)
    said = "left out: one_bf16, since this processor has no instructions for bfloat16"
    assert capsys.readouterr().out.startswith(said)


def test_the_sides_that_need_bfloat16_are_those_that_ask_for_it(scaling):
    for side in scaling.sides(2).values():
        assert side.needs_bfloat16 == ("--mixed_precision=bfloat16" in side.arguments)
