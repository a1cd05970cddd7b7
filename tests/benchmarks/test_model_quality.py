"""`benchmarks/model_quality.py`: tables that files describe, and what its lines say of them."""

import json
import sys
import types

import model_quality
import pytest

PEERS = ("lightgbm", "pandas", "sklearn")


def test_figures_are_means_over_seeds_and_gaps_to_the_better_peer(monkeypatch, tmp_path, capsys):
    for name in PEERS:
        monkeypatch.setitem(sys.modules, name, json)  # A module that is there.
    figures = {"logistic": 0.75, "lightgbm": 0.5, "copc": 1.0, "worst_decile_copc": 0.9}
    (tmp_path / "rows.csv").touch()
    for name in ("one", "two"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"file": "rows.csv", "label": name}))
    ran = []

    def compare(table, seed):
        ran.append((table.label, seed))
        return {**figures, "ours": (0.75 if table.label == "one" else 0.5) + seed / 8}

    monkeypatch.setattr(model_quality, "compare", compare)
    for _ in range(2):  # The second run takes the results of the first one.
        model_quality.main([f"--work={tmp_path / 'work'}", f"--tables_dir={tmp_path}", "--seeds=0,2"])
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert ran == [("one", 0), ("one", 2), ("two", 0), ("two", 2)]
    assert shown["tables"] == {"one": figures | {"ours": 0.875}, "two": figures | {"ours": 0.625}}
    assert (shown["tables_minus_best_mean"], shown["tables_minus_best_min"], shown["failed"]) == (0.0, -0.125, [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('file = "no.csv"\nlabel = "y"', "shop.toml: there is no .*no.csv"),
        ('file = "shop.toml"\nlable = "y"', "shop.toml: .*'lable'; --help says how to describe a table"),
        ("file", "shop.toml: .*; --help says how"),
    ],
)
def test_a_wrong_description_is_named(tmp_path, text, said):
    (tmp_path / "shop.toml").write_text(text)
    with pytest.raises(SystemExit, match=said):
        model_quality.described(tmp_path / "shop.toml", tmp_path)


def test_unknown_tables_and_missing_libraries_are_named(monkeypatch, tmp_path):
    asked = types.SimpleNamespace(tables_dir=tmp_path, data=["shop"], real_data=tmp_path)
    with pytest.raises(SystemExit, match=r"no description of a table \{'shop'\}; there are \[\]"):
        model_quality.tables_of(asked)
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(SystemExit, match="there is no lightgbm: pip install 'ctr_trainer.peers.'"):
        model_quality.tables(asked)


@pytest.mark.integration
def test_a_raw_table_is_learned_by_all_sides(tmp_path, warm_python):
    for name in PEERS:
        pytest.importorskip(name, reason="it is in the extra `peers`, which tests do not need")
    labels = ["no" if (row % 50 < 30) ^ (row % 7 == 0) else "yes" for row in range(900)]
    rows = [f"{row % 50}, {'ab'[row % 2]}, {label}.\n" for row, label in enumerate(labels)]
    (tmp_path / "rows.data").write_text("".join(rows))
    (tmp_path / "shop.toml").write_text('file = "rows.data"\nlabel = "c3"\nsplit = "time:c1"\n')
    by_time = model_quality.described(tmp_path / "shop.toml", tmp_path)
    assert {*model_quality.split(by_time, 1)[2]["c1"]} == {*map(str, range(40, 50))}
    found = model_quality.compare(by_time._replace(split="random"), 1)
    assert min(found[side] for side in ("ours", "logistic", "lightgbm")) > 0.7
    assert 0.5 < found["copc"] < 2 and 0.1 < found["worst_decile_copc"] < 10
