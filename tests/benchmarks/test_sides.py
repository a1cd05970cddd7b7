"""What the benchmarks share, and a comparison on a processor that lacks instructions which one side needs."""

import argparse
import json

import pytest
import scaling
import sides


def parts(**measured):
    def fail(flags):
        raise SystemExit("no broker")

    return {
        name: sides.Part(f"measures {name}", (f"{name}_key",), (lambda flags, of=of: of) if of else fail)
        for name, of in measured.items()
    }


def test_the_last_line_has_all_keys_with_null_for_parts_without_a_result(capsys):
    of = parts(first={"first_key": 0.5}, second=None, third={"third_key": 3})
    sides.run_parts(of, argparse.Namespace(parts=["first"]))
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["first_key"], found["second_key"], found["third_key"], found["failed"]) == (0.5, None, None, [])
    with pytest.raises(SystemExit, match="failed: second"):
        sides.run_parts(of, argparse.Namespace(parts=["second", "third"]))
    output = capsys.readouterr()
    found = json.loads(output.out.splitlines()[-1])
    assert (found["second_key"], found["third_key"], found["failed"]) == (None, 3, ["second"])
    assert found["seconds"].keys() == {"second", "third"} and "no broker" in output.err


def test_an_unknown_part_is_refused_and_a_failed_command_shows_its_output(capsys):
    parser = sides.parser("help")
    sides.add_parts(parser, parts(first={}, second={}), default=["first"])
    assert parser.parse_args([]).parts == ["first"]
    assert parser.parse_args(["--parts=second,first"]).parts == ["second", "first"]
    with pytest.raises(SystemExit):
        parser.parse_args(["--parts=frist"])
    assert "there is no part frist: choose from first, second" in capsys.readouterr().err
    assert sides.call(["sh", "-c", "echo said"]) == "said\n"
    with pytest.raises(SystemExit, match=r"sh -c .* ended with 3:\nbefore\n\nwhy"):
        sides.call(["sh", "-c", "echo before; echo why >&2; exit 3"])


def test_sides_are_measured_in_turn_and_a_ratio_is_the_median_of_the_ratios(capsys):
    asked, rates = [], {"one": iter([1.0, 9.0, 4.0]), "other": iter([2.0, 3.0, 2.0])}

    def measure(name):
        asked.append(name)
        return next(rates[name])

    found = sides.in_turn({name: lambda name=name: measure(name) for name in rates}, rounds=3)
    assert asked == ["one", "other"] * 3
    assert "round 3 of 3, other: 2; about 0 s left" in capsys.readouterr().err
    assert sides.ratio(found, "one", "other") == 2.0  # The median of 0.5, 3 and 2.
    assert sides.ratio(found, "one", "a side that did not run") is None


def test_every_ratio_of_scaling_has_its_sides_and_bfloat16_is_left_out(monkeypatch, capsys):
    monkeypatch.setattr(scaling.hardware, "has_bfloat16", lambda: False)
    every = scaling.every_side(steps=2)
    assert every.keys() - scaling.runnable(every).keys() == {"one_bf16", "w2_bf16"}
    assert [name for name, side in every.items() if scaling.BFLOAT16 in side.args] == ["one_bf16", "w2_bf16"]
    said = "left out: bfloat16, since this processor has no instructions for it"
    assert capsys.readouterr().out.startswith(said)
    named = {side for one, other, _ in scaling.RATIOS.values() for side in (one, other)}
    assert named == scaling.every_side(steps=2).keys() | {"demo", "demo_shared"}


def test_too_few_steps_to_compare_the_memory_start_no_training(monkeypatch):
    monkeypatch.setattr(scaling, "logged_steps", lambda command: pytest.fail("it trains"))
    assert scaling.rss_growth_percent(0) is None and scaling.rss_growth_percent(3_999) is None
