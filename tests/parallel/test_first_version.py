"""A program of TensorFlow 1 that starts nothing by hand, on one worker and on two."""

import json

import pytest

from tests.parallel import launch

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """By number of workers, by rank, what the program found."""
    outs = {workers: tmp_path_factory.mktemp(f"first{workers}") for workers in (1, 2)}
    for workers, out in outs.items():
        launch.run(workers if workers > 1 else 0, launch.WORKERS / "first_version.py", out)
    return {w: [json.loads((out / f"{rank}.json").read_text()) for rank in range(w)] for w, out in outs.items()}


def test_an_input_fn_with_context_gives_two_workers_the_loss_of_one(found):
    (alone,), both = found[1], found[2]
    for rank in both:
        assert rank["context"] == pytest.approx(alone["context"], abs=1e-5)
    assert alone["context"] == pytest.approx(alone["whole"], abs=1e-6)  # A lone worker's share is all.
    assert 0 < alone["normed"] < 2 and 0 < both[0]["normed"] < 2


def test_ranks_that_read_equal_batches_are_refused_and_a_sum_loss_warned_of(found):
    for rank in found[2]:
        assert "ranks 0 and 1 read the same batches (the first 3 are equal)" in rank["whole"]
        assert "dataset = dataset.shard(tf_estimator.size(), tf_estimator.rank())" in rank["whole"]
        assert rank["allowed"] == pytest.approx(found[1][0]["whole"], abs=1e-5)
    texts = found[2][0]["warnings"]
    assert len([text for text in texts if "seems to be a sum over the examples of a batch" in text]) == 1
    assert any("all 2 ranks have evaluated the same examples" in text for text in texts)
    for others in (found[1][0], found[2][1]):
        assert not [text for text in others["warnings"] if "seems to be a sum" in text or "the same examples" in text]


def test_ranks_share_the_directory_of_rank_0_and_the_mean_of_uneven_batches(found):
    (alone,), both = found[1], found[2]
    directory = both[0]["directory"]["before"]
    assert directory and both[1]["directory"]["before"] == ""
    for rank in both:
        of_rank = rank["directory"]
        assert (of_rank["after"], of_rank["examples"]) == (directory, 29)
        assert of_rank["latest"] == f"{directory}/checkpoints/step-0000000002"
        assert of_rank["loss"] == pytest.approx(alone["directory"]["loss"], abs=1e-5)
