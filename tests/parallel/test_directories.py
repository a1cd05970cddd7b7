"""A program that gives its model directory on rank 0 only, and evaluates uneven batches on two workers."""

import json

import pytest

from tests.parallel import launch

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """(the model directory, what each rank found)"""
    out = tmp_path_factory.mktemp("directories")
    launch.run(2, launch.WORKERS / "directories.py", out / "model", out)
    return out / "model", [json.loads((out / f"{rank}.json").read_text()) for rank in range(2)]


def test_a_rank_without_a_model_directory_takes_that_of_rank_0(found):
    directory, ranks = found
    assert [rank["before"] for rank in ranks] == [str(directory), ""]
    for rank in ranks:
        assert (rank["after"], rank["step"]) == (str(directory), 2)
        assert rank["latest"] == str(directory / "checkpoints" / "step-0000000002")


def test_two_workers_with_uneven_batches_have_the_mean_loss_over_all_examples(found):
    for rank in found[1]:
        assert rank["loss"] == pytest.approx(rank["expected"], rel=1e-5)
        assert (rank["examples"], rank["trained"]) == (29, 16 + 9)
