"""What `benchmarks/model_quality.py` prints of its parts; the measurements themselves are no tests."""

import json
import pathlib
import sys
import types

import pytest

from ctr_trainer.commands.train import GROUPS
from ctr_trainer.experiment import flags
from ctr_trainer.models import param_texts
from ctr_trainer.models.registry import MODELS, find_model

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def model_quality(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import model_quality

    part = types.SimpleNamespace(run=lambda flags: {"bars_gap_max": 0.0001 * len(flags.seeds)})
    monkeypatch.setitem(sys.modules, "quality_bars", part)
    for other in ("quality_best", "quality_search"):
        monkeypatch.delitem(sys.modules, other, raising=False)
    monkeypatch.setattr(sys, "argv", ["model_quality.py"])
    return lambda *flags: model_quality.main([f"--work={tmp_path / 'work'}", *flags])


def test_parts_that_are_not_run_are_null_and_not_imported(model_quality, capsys):
    model_quality("--parts=bars", "--seeds=1,2")
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {
        "bars_gap_max": 0.0002,
        "defaults_minus_lr_min": None,
        "adult_best_auc": None,
        "movielens_history_best_auc": None,
        "din_over_deepfm_speed": None,
        "dien_over_deepfm_speed": None,
        "bst_over_deepfm_speed": None,
        "din_over_deepfm_speed_50": None,
        "search_minus_hand_tuned_min": None,
    }
    assert "quality_search" not in sys.modules


def test_an_unknown_part_and_an_unknown_key_are_refused(model_quality, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        model_quality("--parts=leaderboard")
    assert "'leaderboard' is not one of bars, defaults, best, speed, search" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "quality_bars", types.SimpleNamespace(run=lambda flags: {"auc": 1.0}))
    with pytest.raises(SystemExit, match="quality_bars.run returned auc: PARTS names bars_gap_max"):
        model_quality("--parts=bars")


def test_every_model_of_bars_is_one_of_ours_and_of_theirs_with_flags_that_exist(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import quality_bars

    theirs = (BENCHMARKS / "accuracy_fuxictr.py").read_text()
    for model in quality_bars.MODELS:
        assert model in MODELS and f'    "{model}": ' in theirs
        values = flags.define(GROUPS)
        values(["test", *quality_bars.flags_of_ours("movielens-random", model)])
        experiment = flags.read(GROUPS[0], values)
        assert experiment.run.embedding.optimizer.moves_all_rows and experiment.run.embedding.l2 == 1e-4
        params = find_model(model).params_class
        assert param_texts.parse(model, params, experiment.model.model_params, {"train_op_fn": None})
