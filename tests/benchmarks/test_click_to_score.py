"""The benchmark of the loop from a click to a score: which answer shows a record, and what its last line says."""

import json
import time
import types

import pytest

from tests.benchmarks.test_delayed_labels import BENCHMARKS


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import click_to_score

    return click_to_score


@pytest.fixture
def loop(benchmark):
    import stream_loop

    return stream_loop


class Server:
    """Answers like a scoring server that has trained some keys."""

    def __init__(self):
        self.trained = set()

    def ask(self, path, body):
        scores = [0.5 + 0.1 * (row["C1"] in self.trained) for row in body["instances"]]
        return 200, {"predictions": [{"probabilities": score + 1e-7 * n} for n, score in enumerate(scores)]}, {}


def test_an_answer_shows_the_keys_that_were_trained_and_no_other(loop):
    marks = [loop.Mark(f"marked {n}", {"label": 1, "C1": f"marked {n}"}, time.monotonic() - 5) for n in range(3)]
    appender, server = types.SimpleNamespace(marks=marks), Server()
    loop._ask_for(appender, server, time.monotonic() + 0.05)
    assert [mark.seconds for mark in marks] == [None] * 3
    server.trained.add("marked 1")
    loop._ask_for(appender, server, time.monotonic() + 0.05)
    assert marks[0].seconds is None and marks[2].seconds is None and 5 <= marks[1].seconds < 60


def test_the_last_line_has_all_keys_and_null_for_the_parts_that_did_not_run(benchmark, monkeypatch, capsys):
    monkeypatch.setitem(benchmark.PARTS, "file", lambda args: {"stream_over_file": 0.5})
    monkeypatch.setattr("sys.argv", ["click_to_score.py", "--parts=file"])
    benchmark.main()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["stream_over_file"] == 0.5
    assert {key for part in ("loop", "delayed") for key in benchmark.KEYS[part] if found[key] is not None} == set()
    monkeypatch.setattr("sys.argv", ["click_to_score.py", "--parts=fils"])
    with pytest.raises(SystemExit):
        benchmark.main()
    assert "--parts has no part fils: choose from" in capsys.readouterr().err


def test_a_part_that_fails_leaves_the_figures_of_the_others(benchmark, monkeypatch, capsys):
    def fail(args):
        raise SystemExit("no broker")

    monkeypatch.setitem(benchmark.PARTS, "file", lambda args: {"stream_over_file": 0.5})
    monkeypatch.setitem(benchmark.PARTS, "loop", fail)
    monkeypatch.setattr("sys.argv", ["click_to_score.py", "--parts=loop,file"])
    with pytest.raises(SystemExit, match="failed: loop"):
        benchmark.main()
    output = capsys.readouterr()
    found = json.loads(output.out.splitlines()[-1])
    assert found["stream_over_file"] == 0.5 and found["failed"] == ["loop"] and "no broker" in output.err
    assert found["click_to_score_p50_secs"] is None and found["seconds"].keys() == {"loop", "file"}
