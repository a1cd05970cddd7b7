"""What `report` says of one run and of several."""

import json

import pytest

from ctr_trainer import cli
from ctr_trainer.commands.reports.comparison import format_comparison, format_metrics, format_phases
from ctr_trainer.commands.reports.training_run import read_runs
from ctr_trainer.system.messages.errors import UserError


def _write(path, training=(), evaluations=(), summary=None, cut_off="", **flags):
    path.mkdir(parents=True)
    (path / "flags.json").write_text(json.dumps({"command": "train", "workers": 2, "flags": flags}))
    lines = "".join(json.dumps(line) + "\n" for line in training)
    (path / "metrics.jsonl").write_text(lines + cut_off)
    if evaluations:
        (path / "evaluations.json").write_text(json.dumps({"best": None, "evaluations": evaluations}))
    if summary:
        (path / "train_summary.json").write_text(json.dumps(summary))
    return path


def _step(step, **figures):
    return {"step": step, "time": 1.0, **figures}


@pytest.fixture
def runs(tmp_path):
    slow = _write(
        tmp_path / "slow",
        [_step(0), _step(10, auc=0.5, examples_per_sec=900.0)],
        [dict(step=5, auc=0.61, logloss=0.6), dict(step=10, auc=0.6, logloss=0.55)],
        dict(global_step=10, examples_per_sec=1234.5, steps=4, examples=400),
        learning_rate=0.1,
        batch_size=64,
        hidden_units=[8],
        model_dir="a",
    )
    running = _write(
        tmp_path / "running",
        [_step(0), _step(10, auc=0.55, examples_per_sec=2000.0)],
        cut_off='{"step": 20, "au',
        learning_rate=0.2,
        batch_size=64,
        hidden_units=[8],
        model_dir="b",
    )
    return slow, running


def test_the_table_has_last_and_best_figures_and_what_the_runs_were_set_to(runs):
    lines = format_comparison(read_runs(runs)).splitlines()
    assert lines[0].split() == "run steps examples examples/s AUC best AUC log loss best log loss".split()
    slow = ["slow", "10", "1,000", "1,234", "0.60000", "0.61000", "@500", "0.55000", "0.55000", "@1,000"]
    assert lines[1].split() == slow
    assert lines[2].split() == ["running", "10", "1,280", "2,000", "-", "-", "-", "-"]  # Of two workers.
    assert lines[4] == "auc by examples:"
    assert [line.split()[:3] for line in lines[6:8]] == [["500", "0.61000", "-"], ["1,000", "0.60000", "-"]]
    assert lines[9] == "settings that differ:"
    assert [line.split() for line in lines[10:]] == [["setting", "slow", "running"], ["learning_rate", "0.1", "0.2"]]


def test_runs_of_other_batch_sizes_are_compared_at_equal_numbers_of_examples(tmp_path):
    evaluations = [[{"step": step, "auc": step / 100} for step in steps] for steps in (range(2, 41, 2), (2, 10))]
    paths = [tmp_path / name for name in ("small", "large")]
    for path, found, size in zip(paths, evaluations, (10, 80), strict=True):
        _write(path, [_step(0)], found, batch_size=size, accumulation_steps=2)
    lines = format_comparison(read_runs(paths)).splitlines()
    rows = [line.split() for line in lines[lines.index("auc by examples:") + 1 : -4]]
    assert rows[0] == ["examples", "small", "large"] and len(rows) == 11
    assert rows[1] == ["80", "0.02000", "-"] and rows[-1] == ["3,200", "-", "0.10000"]
    assert ["640", "0.16000", "0.02000"] in rows


def test_runs_of_one_name_are_told_apart_by_their_paths(tmp_path):
    paths = [_write(tmp_path / side / "model", [_step(0)]) for side in ("left", "right")]
    assert [run.name for run in read_runs([*paths, paths[0]])] == ["left/model", "right/model"]


def test_metrics_of_several_labels_are_columns_of_their_own(tmp_path):
    evaluations = [{"step": 5, "auc/click": 0.7, "auc/buy": 0.8, "logloss/click": 0.3, "logloss/buy": 0.1}]
    runs = read_runs([_write(tmp_path / "run", [_step(0)], evaluations)])
    text = format_comparison(runs)
    assert "best AUC buy" in text and "0.80000 @-" in text  # Without a batch size, the examples are unknown.


def test_a_directory_without_a_run_is_named(tmp_path, capsys):
    with pytest.raises(UserError, match="no such directory"):
        read_runs([tmp_path / "nowhere"])
    assert cli.main(["report", str(tmp_path)]) == 1
    assert "it has no metrics.jsonl" in capsys.readouterr().err
    assert cli.main(["report"]) == 1
    assert "RUN_DIR" in capsys.readouterr().err


PHASES = {
    "step_seconds": 0.010,
    "steps": 100,
    "traced_steps": 5,
    "seconds": {"read_sample": 0.001, "forward": 0.008},
    "accounted": 0.9,
}
MEMORY = {"resident_bytes": {"mean": 1.2e9}, "service_resident_bytes": 4e8, "gpu": None}
RESULT = {"phases": PHASES, **MEMORY}


@pytest.mark.parametrize(
    ("changes", "rest"),
    [
        ({}, ["worker's memory 1,200 MB", "service's memory 400 MB"]),
        (
            {"service_resident_bytes": None, "gpu": {"busy": {"mean": 0.5}, "bytes": {"mean": 3e9}}},
            ["worker's memory 1,200 MB", "GPU's memory 3,000 MB"],
        ),
    ],
)
def test_each_phase_has_its_time_and_share_and_memory_follows(changes, rest):
    lines = [" ".join(line.split()) for line in format_phases({**RESULT, **changes})]
    assert lines[1:] == ["read sample 1.00 ms 10.0%", "forward 8.00 ms 80.0%", "accounted 90.0%", *rest]


def test_a_run_that_is_too_short_says_so():
    (line,) = format_phases({**RESULT, "phases": None})
    assert "too short" in line


def test_the_columns_of_the_deciles_stay_apart_whatever_the_figures():
    rows = [dict(decile=n, weight=1e8 * n, prob_mean=1e-9, real_mean=0.00485, copc=567259.46682 * n) for n in (1, 10)]
    table = format_metrics({"auc": 0.5, "reliability": rows}).splitlines()[3:]
    assert [line.split() for line in table] == [
        ["decile", "examples", "predicted", "happened", "copc"],
        ["1", "100,000,000", "0.00000", "0.00485", "567259.46682"],
        ["10", "1,000,000,000", "0.00000", "0.00485", "5672594.66820"],
    ]
