"""One job of two workers that evaluates in every way, against one process on the same checkpoints."""

import json
import os

import pyarrow.parquet as pq
import pytest

from ctr_trainer.checkpoint.evaluations import EvaluationHistory
from ctr_trainer.ranks import distributed
from tests import small
from tests.parallel import launch
from tests.parallel.workers import evaluations as worker

pytestmark = pytest.mark.integration

FILES = "importance.json", "by.json"
ROWS = 203  # no share is divisible by the batch size of 16


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """The (directory, output of each rank, paths of the data) of a job."""
    directory = tmp_path_factory.mktemp("evaluations")
    data = {
        "train": small.make(directory / "train", rows=640),
        "test": small.make(directory / "test", rows=ROWS, seed=1),
        "one_row": small.make(directory / "one", rows=1, seed=2),  # so that one of the ranks has none
    }
    arguments = [f"--{name}={path}" for name, path in data.items()]
    arguments += [f"--model_dir={directory / 'model'}", f"--out={directory / 'out'}"]
    launch.run(2, launch.WORKERS / "evaluations.py", *arguments)
    ranks = [json.loads((directory / "out" / f"evaluations-{rank}.json").read_text()) for rank in (0, 1)]
    distributed.init()
    return directory, ranks, data


def test_two_ranks_have_the_same_metrics_and_one_process_has_them_too(job):
    directory, ranks, data = job
    assert json.dumps(ranks[0]["by user"]) == json.dumps(ranks[1]["by user"])
    one = worker.evaluations(worker.make_estimator(directory / "model"), data["test"], data["one_row"])
    for name, metrics in one.items():
        for rank in ranks:
            table = rank[name].pop("reliability")
            assert len(table) == len(metrics["reliability"])
            for theirs, ours in zip(table, metrics["reliability"], strict=True):
                assert theirs == pytest.approx(ours, abs=1e-6)
            assert rank[name].pop("new_keys") == metrics["new_keys"]
            ours = {key: value for key, value in metrics.items() if key not in ("reliability", "new_keys")}
            assert rank[name] == pytest.approx(ours, abs=1e-6, nan_ok=True)
    assert (one["by user"]["examples"], one["one row"]["examples"]) == (ROWS, 1)
    assert one["by user"]["gauc_groups"] > 10
    assert one["by row"]["gauc_groups_left_out"] == ROWS  # every row is a group of its own


def test_rows_stay_for_a_rank_that_predicts_after_rank_0_left(job):
    directory, ranks, data = job
    estimator = worker.make_estimator(directory / "model")
    predicted = estimator.predict(lambda: worker.reader(data["test"], shuffle=False, epochs=1))
    theirs = ranks[1]["rank 0 left"]
    assert theirs == pytest.approx([each["probabilities"] for each in predicted][-len(theirs) :], abs=1e-6)


def test_two_ranks_find_the_same_importance_and_metrics_by_value_as_one(job, tmp_path):
    directory, _, data = job
    given = [f"--eval_data={data['test']}", f"--model_dir={directory / 'model'}", "--checkpoint=best"]
    worker.insights(given, tmp_path)
    theirs, ours = ([json.loads((at / f).read_text()) for f in FILES] for at in (directory / "out", tmp_path))
    for two, one in zip(theirs[0].pop("columns"), ours[0].pop("columns"), strict=True):
        assert two == pytest.approx(one, abs=1e-6)
    for two, one in zip(theirs[1]["by"]["largest"], ours[1]["by"]["largest"], strict=True):
        assert two == pytest.approx(one, abs=1e-6, nan_ok=True)


def test_evaluations_during_training_equal_those_of_their_checkpoints(job):
    directory, ranks, data = job
    for rank in ranks:
        assert (rank["train"]["global_step"], rank["train"]["stopped_early"]) == (20, True)
        assert rank["train"]["evaluation"] == ranks[0]["train"]["evaluation"]
        # Only the first evaluation is an improvement.
        assert rank["rates"] == [0.1] * 10 + [0.05] * 5 + [0.025] * 5
    history = EvaluationHistory.load(directory / "model")
    assert [each["step"] for each in history.evaluations] == [5, 10, 15, 20]
    estimator = worker.make_estimator(directory / "model")
    for each in history.evaluations:
        metrics = estimator.evaluate(
            lambda: worker.reader(data["test"], shuffle=False, epochs=1),
            checkpoint_path=estimator.find_checkpoint(str(each["step"])),
            group_by="user",
        )
        del metrics["reliability"], metrics["new_keys"]
        assert {"global_step": each.pop("step"), **each} == pytest.approx(metrics, abs=1e-6)
    assert history.best["value"] == max(each["auc"] for each in history.evaluations)
    assert os.listdir(directory / "model" / "best") == [f"step-{history.best['step']:010d}"]


def test_two_ranks_save_by_rank_0s_clock_and_evaluate_by_epochs(job):
    """The time is always over, so they save as often as they ask rank 0."""
    model = job[0] / "by_time"
    saved = sorted(os.listdir(model / "checkpoints"))
    assert len(saved) >= 3
    assert saved[-1] == f"step-{40:010d}"
    assert [each["step"] for each in EvaluationHistory.load(model).evaluations] == [20, 40]


def test_predictions_come_in_a_part_a_rank_in_the_order_of_the_input(job):
    directory, ranks, _ = job
    names = [f"predictions-{rank:05d}-of-00002.parquet" for rank in (0, 1)]
    assert sorted(p.name for p in (directory / "out").iterdir() if "predictions" in p.name) == names
    parts = [pq.read_table(directory / "out" / name) for name in names]
    rows = [row for part in parts for row in part["row"].to_pylist()]
    assert rows == [f"r{i}" for i in range(ROWS)]
    probabilities = [p for part in parts for p in part["probabilities"].to_pylist()]
    assert sum(probabilities) / ROWS == pytest.approx(ranks[0]["best"]["prob_mean"], abs=1e-6)
