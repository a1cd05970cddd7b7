"""The benchmark of the loop from a click to a score: which answer shows a record, and the rows of the stream."""

import importlib
import itertools
import json
import types
from unittest import mock

import click_to_score
import numpy as np
import pytest
import stream_loop as loop


class Server:
    """Answers like a scoring server that has trained some keys."""

    def __init__(self):
        self.trained = set()

    def ask(self, path, body):
        scores = [0.5 + 0.1 * (row["C1"] in self.trained) for row in body["instances"]]
        return 200, {"predictions": [{"logits": score + 1e-7 * n} for n, score in enumerate(scores)]}, {}


def test_an_answer_shows_the_keys_that_were_trained_and_no_other():
    rows, server = [{"label": 1, "C1": f"marked {n}"} for n in range(3)], Server()
    assert loop.shown(server, rows) == [False] * 3
    server.trained.add("marked 1")
    assert loop.shown(server, rows) == [False, True, False]


def test_each_marked_record_is_appended_once_and_requested_until_shown(tmp_path, monkeypatch):
    server, appended = Server(), []

    class Appender:
        def append(self, row):
            appended.append(row["C1"])
            if len(appended) > 1:  # A record is trained when the next one comes.
                server.trained.add(appended[-2])

    clock = itertools.count()
    monkeypatch.setattr(loop, "time", types.SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda seconds: None))
    monkeypatch.setattr(loop, "MARK_SECONDS", 10)
    (tmp_path / "train.log").write_text("why it ended")
    with pytest.raises(SystemExit, match="1 of 5 marked records were never shown:\nwhy it ended"):
        loop._until_shown(Appender(), server, 45, tmp_path / "train.log")
    server.trained.add("marked 4")
    appended.clear()
    found = loop._until_shown(Appender(), server, 45, tmp_path / "train.log")
    assert appended == [f"marked {n}" for n in range(5)] and found == [1] * 5


def test_every_part_of_the_program_has_its_keys():
    keys = [key for part in click_to_score.PARTS.values() for key in part.keys]
    assert len(keys) == len(set(keys)) and {"click_to_score_p99_secs", "records_trained_twice", "switches"} < {*keys}


def test_each_part_calls_what_measures_it_with_arguments_that_it_takes(monkeypatch, capsys):
    modules = ("stream_loop", "switches", "stream_kills", "stream_faults")
    for owner in map(importlib.import_module, modules):
        monkeypatch.setattr(owner, "measure", mock.create_autospec(owner.measure, return_value={owner.__name__: 1}))
    click_to_score.main([])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["failed"] == [] and {*modules} < {*found}


def test_the_labels_follow_from_the_values_by_the_same_log_odds_for_all_seeds():
    rows = [[*itertools.islice(loop.clicks(seed, 8, 2, f"of {seed}"), 5000)] for seed in (1, 2)]
    assert [row["own"] for row in rows[1][:2]] == ["of 2 0", "of 2 1"]
    assert len({row["own"] for row in rows[0]}) == 5000  # More than one block.
    assert rows[0][0].keys() == {"own", "label", *(f"C{n}" for n in range(1, 9)), "I1", "I2"}
    assert [row["C1"] for row in rows[0]] != [row["C1"] for row in rows[1]]
    odds = loop.log_odds(8)
    for some in rows:
        sums = odds[np.arange(8), [[int(row[f"C{n + 1}"], 16) for n in range(8)] for row in some]].sum(axis=1)
        labels = np.array([row["label"] for row in some])
        assert labels[sums > np.median(sums)].mean() - labels[sums < np.median(sums)].mean() > 0.15
