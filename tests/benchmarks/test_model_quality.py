"""What `benchmarks/model_quality.py` prints of its parts; the measurements themselves are no tests."""

import itertools
import json
import types

import accuracy_data
import model_quality
import pytest
import quality_defaults
import quality_speed
import quality_zoo
import tensorflow as tf

from ctr_trainer.commands.experiment import flags
from ctr_trainer.commands.train import GROUPS
from ctr_trainer.models import param_texts
from ctr_trainer.models.registry import MODELS, find_model


def experiment(*given):
    """Returns the `Experiment` that flags of `train` make, and the flags."""
    values = flags.define(GROUPS)
    values(["test", *given])
    return flags.read(GROUPS[0], values), values


def test_the_last_line_has_the_keys_of_all_parts(monkeypatch, tmp_path, capsys):
    part = model_quality.Part("", ("bars_gap_max",), lambda flags: {"bars_gap_max": 0.0001 * len(flags.seeds)})
    monkeypatch.setitem(model_quality.PARTS, "bars", part)
    model_quality.main([f"--work={tmp_path / 'work'}", "--parts=bars", "--seeds=1,2"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {key for key, value in found.items() if value is None} == {
        *("defaults_minus_lr_min", "adult_best_auc", "movielens_history_best_auc"),
        *("din_over_deepfm_speed", "dien_over_deepfm_speed", "bst_over_deepfm_speed", "din_over_deepfm_speed_50"),
        *("sdim_1000_over_din_50_speed", "sdim_1000_over_sdim_50_speed"),
        *("zoo_best_auc", "zoo_best_history_auc", "search_minus_hand_tuned_min"),
    }
    assert found["bars_gap_max"] == 0.0002 and found["failed"] == []


def test_every_model_of_bars_is_one_of_ours_and_of_theirs_with_flags_that_exist():
    theirs = (model_quality.sides.HERE / "accuracy_fuxictr.py").read_text()
    for model in model_quality.BARS_MODELS:
        assert model in MODELS and f"\ndef {model}(" in theirs
        found, values = experiment(*model_quality.bars_flags("movielens-random", model))
        assert values["recipe"].value == "bars" and found.run.embedding.l2 == 1e-4
        params = find_model(model).params_class
        assert param_texts.parse(model, params, found.model.model_params, {"train_op_fn": None})


@pytest.fixture
def measured(monkeypatch):
    """Has `train_and_test` return figures that a test gives by (data set, model, seed), and counts its calls."""
    monkeypatch.setattr(model_quality, "prepare", lambda data, *given: data)
    figures, calls = {}, []

    def train_and_test(parts, seed, *given):
        (model,) = (flag.partition("=")[2] for flag in given if flag.startswith("--model="))
        calls.append((parts, "found" if "--dropout=0.321" in given else model, seed))
        return {"logloss": 0.5, "copc": 1.0, **figures[calls[-1]]}

    monkeypatch.setattr(model_quality, "train_and_test", train_and_test)
    return types.SimpleNamespace(figures=figures, calls=calls)


def test_the_largest_shortfall_of_a_mean_over_the_seeds_is_the_gap(measured, monkeypatch, tmp_path):
    for model, aucs in {"deepfm": (0.80, 0.82), "pnn": (0.85, 0.83)}.items():
        for seed, auc in enumerate(aucs, 1):
            monkeypatch.setitem(measured.figures, ("adult-categories", model, seed), {"auc": auc})
    monkeypatch.setattr(model_quality, "bars_flags", lambda data, model: [f"--model={model}"])
    monkeypatch.setattr(model_quality, "export_arrays", lambda parts, path: None)
    asked = []

    def call(command, shows_log):
        asked.append([str(each) for each in command[3:]])
        return f"a log\n{json.dumps({'seed': int(asked[-1][-1]), 'auc': 0.83})}\n"

    monkeypatch.setattr(model_quality.sides, "call", call)
    given = types.SimpleNamespace(
        work=tmp_path, data=["adult-categories"], models=["deepfm", "pnn"], seeds=[1, 2], real_data="", peer_python="py"
    )
    for _ in range(2):  # The second run has all results already.
        assert model_quality.bars(given) == {"bars_gap_max": 0.02}
    assert asked == [[model, "1e-05", seed] for model in ("deepfm", "pnn") for seed in ("1", "2")]
    assert len(measured.calls) == 4


def test_one_flagfile_is_chosen_by_validation_of_those_of_both_specs(measured, tmp_path):
    measured.figures["movielens-history", "din", 1] = {"valid": 0.77, "auc": 0.80}
    measured.figures["movielens-means", "din", 1] = {"valid": 0.78, "auc": 0.79}
    asked = types.SimpleNamespace(work=tmp_path, data=["movielens"], models=["din"], seeds=[1], real_data="")
    assert model_quality.best(asked) == {"movielens_history_best_auc": 0.79}
    asked.data = ["movielens-history"]
    assert model_quality.best(asked) == {"movielens_history_best_auc": 0.80}
    assert len(measured.calls) == 2


def test_every_flagfile_of_the_part_best_chooses_by_validation():
    known = set()
    for data, models in itertools.chain(*(each.items() for each in model_quality.BEST.values())):
        for model in models:
            file = model_quality.flagfile(data, model)
            known.add(file.name)
            found, values = experiment(f"--flagfile={file}")
            assert found.model.model == model and values["best_metric"].value == "auc", (data, model)
            assert values["recipe"].value == "none" and "test" not in values["train_data"].value
    root = model_quality.sides.ROOT
    patterns = (
        "configs/adult_*",
        *(f"{d}/movielens/{k}_*" for d in ("examples", "benchmarks") for k in ("history", "means")),
    )
    there = {file.name for pattern in patterns for file in root.glob(pattern)}
    assert there == known


def test_the_search_is_compared_with_the_flagfile_by_hand(measured, monkeypatch, tmp_path):
    found = tmp_path / "found.flags"
    found.write_text("# a comment\n--model=deepfm\n--train_data=T\n--seed=5\n--dropout=0.321\n")
    commands = []

    def call(command, shows_log):
        commands.append(command)
        return "a table\n" + json.dumps({"flagfile": str(found)}) + "\n"

    monkeypatch.setattr(model_quality.sides, "call", call)
    monkeypatch.setattr(model_quality, "prepare", lambda *given: accuracy_data.Parts("T", "V", "E"))
    parts = accuracy_data.Parts("T", "V", "E")
    measured.figures[parts, "found", 1] = {"valid": 0.93, "auc": 0.925}
    measured.figures[parts, "deepfm", 1] = {"valid": 0.93, "auc": 0.926}
    given = types.SimpleNamespace(work=tmp_path, data=["adult"], seeds=[1], search_minutes=3, real_data="")
    assert model_quality.search(given) == {"search_minus_hand_tuned_min": -0.001}
    assert "--minutes=3.0" in commands[0] and model_quality.flags_of(found) == ["--model=deepfm", "--dropout=0.321"]


def test_the_zoo_has_every_model_of_one_label_with_flags_that_exist():
    assert set(MODELS) - set(quality_zoo.models()) == {"shared_bottom", "mmoe", "ple", "esmm"}
    for model in quality_zoo.models():
        found, _ = experiment(*quality_zoo.chosen(model))
        params = param_texts.parse(model, find_model(model).params_class, found.model.model_params, {})
        assert quality_zoo.reads_histories(model) == hasattr(params, "sequences")


def test_the_models_of_several_sizes_have_about_equal_operations_at_each():
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


def test_operations_are_counted_by_hand():
    with tf.Graph().as_default() as graph:
        x, w = tf.ones([1, 3]), tf.ones([3, 5])
        y = tf.matmul(x, w)  # 2 * 3 * 5
        z = tf.einsum("bn,nk->bk", y, tf.ones([5, 2]))  # 2 * 5 * 2
        pairs = tf.matmul(tf.reshape(y, [5, -1, 1]), tf.ones([5, 1, 4]))  # 2 * 5 * 4
        tf.gradients([z, pairs], x)
    assert sum(quality_zoo._flops(op) for op in graph.get_operations()) == 30 + 20 + 40


def test_a_run_replaces_the_figures_of_its_models_in_the_page(monkeypatch, tmp_path):
    page, rows = tmp_path / "page.md", tmp_path / "rows.json"
    page.write_text(f"Above\n{quality_zoo.BEGIN}old\n{quality_zoo.END}Below\n")
    line = dict(logloss=0.6, copc=1.0, parameters=5000, kflops=60.7, seeds=1)
    rows.write_text(
        json.dumps(
            [
                line | dict(model="lr", size=0, auc=0.1, valid=0.1, examples_per_sec=1),
                line | dict(model="fm", size=0, auc=0.75, valid=0.74, examples_per_sec=99_000),
                line | dict(model="wukong", size=2, auc=0.7, valid=0.72, examples_per_sec=9),
            ]
        )
    )
    monkeypatch.setattr(quality_zoo, "PAGE", page)
    monkeypatch.setattr(quality_zoo, "ROWS", rows)
    monkeypatch.setattr(quality_zoo, "prepare", lambda data, *given: data)
    aucs, asked = {"lr": 0.76, "din": 0.79, "dcn_v2": 0.77}, []

    def measured(data, seed, given):
        asked.append((data, seed, given))
        model = [flag for flag in given if flag.startswith("--model=")][-1].partition("=")[2]
        speed = {"lr": 200_000, "din": 9_949, "dcn_v2": 9_000}[model]
        return line | dict(auc=aucs[model] + 0.02 * (seed - 1), valid=0.75, examples_per_sec=speed)

    monkeypatch.setattr(quality_zoo, "_measured", measured)
    given = types.SimpleNamespace(work=tmp_path, seeds=[1, 2], sizes=[2], models=["lr", "din", "dcn_v2"], real_data="")
    assert quality_zoo.measure(given) == {"zoo_best_auc": 0.78, "zoo_best_history_auc": 0.8}
    assert asked[0] == ("movielens-time", 1, quality_zoo.chosen("lr"))
    assert asked[2] == ("movielens-history", 1, quality_zoo.chosen("din"))
    assert asked[6:] == [("movielens-time", seed, quality_zoo.chosen("dcn_v2", 2)) for seed in (1, 2)]
    above, *table, below = page.read_text().splitlines()
    assert (above, below) == ("Above", "Below")
    assert table[3:7] == [
        "| `din` (histories) | 9,949 | 0.8000 | 0.6000 | 1.000 | 0.7500 | 5,000 | 2 | yes |",
        "| `dcn_v2` | 9,000 | 0.7800 | 0.6000 | 1.000 | 0.7500 | 5,000 | 2 | yes |",
        "| `lr` | 200,000 | 0.7700 | 0.6000 | 1.000 | 0.7500 | 5,000 | 2 | yes |",
        "| `fm` | 99,000 | 0.7500 | 0.6000 | 1.000 | 0.7400 | 5,000 | 1 |  |",
    ]
    assert table[-3:-1] == [
        "| 2 | `dcn_v2` | 61 | 0.7800 | 0.6000 | 1.000 | 0.7500 | 5,000 | 2 |",
        "| 2 | `wukong` | 61 | 0.7000 | 0.6000 | 1.000 | 0.7200 | 5,000 | 1 |",
    ]
    before = page.read_text(), rows.read_text()
    quality_zoo.measure(given)  # All results are known.
    assert len(asked) == 8 and (page.read_text(), rows.read_text()) == before


def test_the_page_has_the_tables_of_the_figures_and_a_row_for_every_model():
    rows = json.loads(quality_zoo.ROWS.read_text())
    assert quality_zoo.PAGE.read_text().count(quality_zoo.BEGIN + quality_zoo.tables(rows) + quality_zoo.END) == 1
    assert {row["model"] for row in rows if not row["size"]} == set(quality_zoo.models())


def test_rates_of_sequence_models_are_relative_to_equally_many_rows(monkeypatch):
    made, rates = [], {"deepfm": 100.0, "din": 50.0, "bst": 25.0, "dien": 20.0, "sdim": 80.0}
    monkeypatch.setattr(quality_speed, "data", lambda place, length, rows: made.append((length, rows)))
    monkeypatch.setattr(quality_speed, "ROUNDS", 1)
    monkeypatch.setattr(
        quality_speed,
        "examples_per_sec",
        lambda work, side: rates[side.model] / (side.length if side.length > 50 else 1),
    )
    assert quality_speed.measure(None) == {
        "din_over_deepfm_speed": 0.5,
        "bst_over_deepfm_speed": 0.25,
        "dien_over_deepfm_speed": 0.2,
        "din_over_deepfm_speed_50": 0.5,
        "sdim_1000_over_din_50_speed": 0.002,
        "sdim_1000_over_sdim_50_speed": 0.001,
    }
    assert sorted(made) == [(20, 150_000), (50, 20_000), (50, 150_000), (1000, 20_000)]
    assert all(one.rows == other.rows for one, other in quality_speed.RATIOS.values())


def test_the_difference_of_default_settings_is_the_mean_over_the_asked_seeds(capsys):
    line = dict(data="wine", model="deepfm", logloss=0.5, copc=1.0, lr_auc=0.8, lr_logloss=0.4, lr_copc=1.0)
    runs = [{**line, "seed": seed, "auc": auc} for seed, auc in ((1, 0.9), (2, 0.8))]
    assert quality_defaults._difference("wine", runs) == pytest.approx(0.05)
    said = json.loads(capsys.readouterr().out)
    assert (said["aside"], said["auc"], said["auc_less_lr"]) == (True, 0.85, [0.1, 0.0])
    assert set(quality_defaults.ASIDE) < set(quality_defaults.DATA)


def test_a_sample_has_the_rows_and_share_asked_for_and_depends_on_the_seed(tmp_path):
    (tmp_path / "rows").write_text("".join(f"{number}\n" for number in range(1000)))

    def sample(seed, share):
        found = quality_defaults._sample(tmp_path / "rows", lambda line: int(line) < 300, 200, seed, share)
        return found.decode().splitlines()

    one = sample(1, 0.01)
    assert len(set(one)) == 200 and sum(int(line) < 300 for line in one) == 2
    assert one != sample(2, 0.01)
    assert len(set(sample(1, None))) == 200 and sum(int(line) < 300 for line in sample(1, None)) > 20
