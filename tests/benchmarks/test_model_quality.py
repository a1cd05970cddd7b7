"""What `benchmarks/model_quality.py` prints of its parts; the measurements themselves are no tests."""

import json
import pathlib
import sys
import types

import pytest
import tensorflow as tf

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
        "sdim_1000_over_din_50_speed": None,
        "sdim_1000_over_sdim_50_speed": None,
        "zoo_best_auc": None,
        "zoo_best_history_auc": None,
        "search_minus_hand_tuned_min": None,
    }
    assert "quality_search" not in sys.modules


def test_an_unknown_part_and_an_unknown_key_are_refused(model_quality, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        model_quality("--parts=leaderboard")
    assert "'leaderboard' is not one of bars, defaults, best, speed, zoo, search" in capsys.readouterr().err
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


@pytest.fixture
def quality_zoo(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import quality_zoo

    return quality_zoo


def test_the_zoo_has_every_model_of_one_label_with_flags_that_exist(quality_zoo):
    assert set(MODELS) - set(quality_zoo.models()) == {"shared_bottom", "mmoe", "ple", "esmm"}
    for model in quality_zoo.models():
        values = flags.define(GROUPS)
        values(["test", *quality_zoo.chosen(model)])
        experiment = flags.read(GROUPS[0], values)
        params = param_texts.parse(model, find_model(model).params_class, experiment.model.model_params, {})
        assert quality_zoo.reads_histories(model) == hasattr(params, "target")


def test_the_models_of_several_sizes_have_about_equal_operations_at_each(quality_zoo):
    for size in (0, 4):
        found = {}
        for model, sizes in quality_zoo.SIZES.items():
            kind, (params, units) = find_model(model), sizes[size]
            shared = {"hidden_units": tuple(map(int, units.split(",")))}
            with tf.Graph().as_default() as graph:
                features = {"embedding": tf.compat.v1.placeholder(tf.float32, [1, 8, 16])}
                own = param_texts.parse(model, kind.params_class, params.split(","), shared)
                kind.model_fn(features, None, "infer", own)
            found[model] = sum(quality_zoo._flops(op) for op in graph.get_operations())
        expected = 16_000 * 4**size
        assert all(0.8 * expected < flops < 1.1 * expected for flops in found.values()), found


def test_one_flagfile_is_chosen_of_those_of_both_specs_with_histories(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import quality_best

    found = {"movielens-history": {"valid": 0.77, "auc": 0.80}, "movielens-means": {"valid": 0.78, "auc": 0.79}}
    monkeypatch.setattr(quality_best, "_means", lambda results, data, parts, model, seeds: found[data])
    monkeypatch.setattr(quality_best.accuracy_data, "prepare", lambda *given: None)
    asked = types.SimpleNamespace(work=tmp_path, data=list(found), models=["din"], seeds=[1], real_data="")
    assert quality_best.run(asked) == {"movielens_history_best_auc": 0.79}
    asked.data.reverse()
    assert quality_best.run(asked) == {"movielens_history_best_auc": 0.79}


def test_a_flagfile_of_one_data_set_is_not_one_of_another_whose_name_is_longer(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import quality_best

    assert quality_best.models_of("adult") == ["dcn_v2", "deepfm", "lr", "tabm", "wide_deep"]
    assert quality_best.models_of("adult-pieces") == ["tabm"]


def test_operations_are_counted_by_hand(quality_zoo):
    with tf.Graph().as_default() as graph:
        x, w = tf.ones([1, 3]), tf.ones([3, 5])
        y = tf.matmul(x, w)  # 2 * 3 * 5
        z = tf.einsum("bn,nk->bk", y, tf.ones([5, 2]))  # 2 * 5 * 2
        pairs = tf.matmul(tf.reshape(y, [5, -1, 1]), tf.ones([5, 1, 4]))  # 2 * 5 * 4
        tf.gradients([z, pairs], x)
    assert sum(quality_zoo._flops(op) for op in graph.get_operations()) == 30 + 20 + 40


def test_the_zoos_table_stands_between_its_marks_in_the_page(quality_zoo, monkeypatch, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"Above\n{quality_zoo.BEGIN}old\n{quality_zoo.END}Below\n")
    monkeypatch.setattr(quality_zoo, "PAGE", page)
    lines = [
        dict(model="lr", seed=1, auc=0.76, logloss=0.59, copc=1.01, valid=0.75, examples_per_sec=200_040, parameters=1),
        dict(model="lr", seed=2, auc=0.78, logloss=0.57, copc=0.99, valid=0.75, examples_per_sec=200_060, parameters=1),
        dict(model="fm", seed=1, auc=0.75, logloss=0.6, copc=1, valid=0.74, examples_per_sec=99_000, parameters=1),
        dict(model="din", seed=1, auc=0.79, logloss=0.56, copc=1, valid=0.76, examples_per_sec=9_949, parameters=4321),
    ]
    work = tmp_path / "work"
    work.mkdir()
    known = (line | dict(flags=list(quality_zoo.chosen(line["model"]))) for line in lines)
    known = [*known, lines[0] | dict(auc=1.0, flags=["--model=lr", "--epochs=1"])]  # Of another setting.
    (work / "zoo.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in known))
    found = quality_zoo.run(types.SimpleNamespace(work=work, seeds=[1], sizes=[], models=["lr", "fm", "din"]))
    assert found == {"zoo_best_auc": 0.78, "zoo_best_history_auc": 0.79}
    above, *table, below = page.read_text().splitlines()
    assert (above, below) == ("Above", "Below")
    missing = [model for model in quality_zoo.models() if model not in ("lr", "fm", "din")]
    assert " ".join(table[7:-1]) == f"Without a result so far: {', '.join(f'`{model}`' for model in missing)}."
    assert table[3:6] == [
        "| `din` (histories) | 0.7900 | 0.5600 | 1.000 | 0.7600 | 9,900 | 4,321 | 1 | yes |",
        "| `lr` | 0.7700 | 0.5800 | 1.000 | 0.7500 | 200,000 | 1 | 2 | yes |",
        "| `fm` | 0.7500 | 0.6000 | 1.000 | 0.7400 | 99,000 | 1 | 1 |  |",
    ]


def test_the_zoos_table_of_sizes_has_a_row_for_each_size_of_a_model_with_a_result(quality_zoo):
    line = dict(auc=0.7, logloss=0.6, copc=1.0, valid=0.72, examples_per_sec=9, parameters=5000, flops=60_700)
    lines = [line | dict(model=model, flags=list(quality_zoo.sized(model, 2))) for model in ("wukong", "dcn_v2")]
    assert quality_zoo.sizes_table(lines[:0]) == ""
    assert quality_zoo.sizes_table(lines).splitlines()[5:] == [
        "| 2 | `dcn_v2` | 61 | 0.7000 | 0.6000 | 1.000 | 0.7200 | 5,000 | 1 |",
        "| 2 | `wukong` | 61 | 0.7000 | 0.6000 | 1.000 | 0.7200 | 5,000 | 1 |",
    ]


def test_the_zoos_tables_keep_the_rows_of_models_that_are_not_measured_again(quality_zoo):
    def rows(text):
        return [line for line in text.splitlines() if line.startswith("|")]

    page = quality_zoo.PAGE.read_text().partition(quality_zoo.BEGIN)[2].partition(quality_zoo.END)[0]
    assert rows(quality_zoo.table([], page) + quality_zoo.sizes_table([], page)) == rows(page)
    line = dict(logloss=0.6, copc=1.0, examples_per_sec=10**6, parameters=50, flops=9_000)
    lines = [line | dict(model="lr", auc=0.779, valid=0.775), line | dict(model="lr", auc=0.777, valid=0.775)]
    found = rows(quality_zoo.table(lines, page))
    assert len(found) == len(rows(quality_zoo.table([], page)))
    assert "| `lr` | 0.7780 | 0.6000 | 1.000 | 0.7750 | 1,000,000 | 50 | 2 | yes |" in found
    # `lr` is the fastest now, so that only `bst`, whose AUC is above 0.775, has no better one among the faster ones.
    assert [text.split("`")[1] for text in found if text.endswith("| yes |")] == ["bst", "lr"]
    size = line | dict(model="wukong", auc=0.7, valid=0.7, flags=list(quality_zoo.sized("wukong", 2)))
    found, before = rows(quality_zoo.sizes_table([size], page)), rows(quality_zoo.sizes_table([], page))
    assert [new for new, old in zip(found, before, strict=True) if new != old] == [
        "| 2 | `wukong` | 9 | 0.7000 | 0.6000 | 1.000 | 0.7000 | 50 | 1 |"
    ]


def test_the_page_has_the_marks_of_the_zoos_table(quality_zoo):
    assert quality_zoo.PAGE.read_text().count(quality_zoo.BEGIN) == 1
    assert quality_zoo.PAGE.read_text().count(quality_zoo.END) == 1


def test_long_histories_are_compared_with_short_ones_in_each_round(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import quality_speed

    made, rates = [], {("long_50", "din"): 40.0, ("long_50", "sdim"): 80.0}
    long = iter([4.0, 10.0, 8.0])
    monkeypatch.setattr(quality_speed, "data", lambda place, length, rows: made.append((place.name, length, rows)))
    monkeypatch.setattr(
        quality_speed,
        "examples_per_sec",
        lambda place, model, run: rates[place.name, model] if place.name == "long_50" else next(long),
    )
    keys = {"sdim_1000_over_din_50_speed": 0.2, "sdim_1000_over_sdim_50_speed": 0.1}
    assert quality_speed._long(tmp_path) == keys
    assert made == [("long_50", 50, quality_speed.LONG_ROWS), ("long_1000", 1000, quality_speed.LONG_ROWS)]


@pytest.fixture
def quality_defaults(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import quality_defaults

    return quality_defaults


def test_the_difference_of_default_settings_is_the_mean_over_the_asked_seeds(quality_defaults, capsys):
    line = dict(data="wine", model="deepfm", logloss=0.5, copc=1.0, lr_auc=0.8, lr_logloss=0.4, lr_copc=1.0)
    lines = [{**line, "seed": seed, "auc": auc} for seed, auc in ((1, 0.9), (2, 0.8), (3, 0.1))]
    results = types.SimpleNamespace(lines=[*lines, {**lines[0], "data": "digits", "auc": 0.0}])
    assert quality_defaults._difference(results, "wine", "deepfm", [1, 2]) == pytest.approx(0.05)
    said = json.loads(capsys.readouterr().out)
    assert (said["aside"], said["auc"], said["auc_less_lr"]) == (True, 0.85, [0.1, 0.0])
    assert set(quality_defaults.ASIDE) < set(quality_defaults.DATA)


def test_a_sample_has_the_asked_rows_and_share_of_positives_and_another_seed_another_sample(quality_defaults):
    lines = [str(number) for number in range(1000)]
    positive = [number < 300 for number in range(1000)]
    sample = quality_defaults._sample(lines, positive, 200, 1, 0.01)
    assert len(set(sample)) == 200 and sum(int(line) < 300 for line in sample) == 2
    assert sample != quality_defaults._sample(lines, positive, 200, 2, 0.01)
    assert len(set(quality_defaults._sample(lines, positive, 200, 1, None))) == 200
