"""The programs of examples/, as their first lines say to run them."""

import json

import numpy as np
import pytest

from ctr_trainer import cli
from tests.parallel import launch

pytestmark = [pytest.mark.integration, pytest.mark.slow]
EXAMPLES = launch.ROOT / "examples"


def _run(name, workers, *arguments):
    """-> the JSON line that rank 0 prints."""
    done = launch.run(workers, EXAMPLES / name, *arguments)
    lines = [line.removeprefix("[0]<stdout>:") for line in done.stdout.splitlines()]
    (line,) = [line for line in lines if line.startswith("{")]
    return json.loads(line)


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    data = tmp_path_factory.mktemp("clicks") / "data"
    assert cli.main(["convert", "--format=synthetic", "--rows=30000", f"--output={data}"]) == 0
    return data


def test_the_ported_program_has_the_losses_of_one_worker_on_two(tmp_path):
    losses = {}
    for workers in (0, 2):
        directory = tmp_path / f"model{workers}"
        result = _run("plain_estimator.py", workers, f"--model_dir={directory}")
        assert result["global_step"] == 200
        assert result["auc"] > 0.7
        evaluations = json.loads((directory / "evaluations.json").read_text())["evaluations"]
        losses[workers] = [each["loss"] for each in evaluations]
    assert len(losses[0]) == 4
    np.testing.assert_allclose(losses[2], losses[0], atol=1e-5, rtol=0)


def test_a_model_with_embeddings_in_the_service_learns(clicks, tmp_path):
    result = _run("with_embeddings.py", 2, f"--data={clicks}", f"--model_dir={tmp_path / 'model'}")
    assert result["global_step"] == 15  # 30,000 rows, 1,024 of each of two workers
    assert result["examples"] == 3000
    assert result["auc"] > 0.6


def test_a_loop_of_ones_own_syncs_its_rows_and_saves_both_halves(clicks, tmp_path):
    result = _run("horovod_loop.py", 2, f"--data={clicks}", f"--model_dir={tmp_path}")
    assert result["global_step"] == 15
    assert 0.3 < result["loss"] < 0.69
    assert result["rows"] > 10_000
    assert list((tmp_path / "rows").iterdir())
    assert (tmp_path / "checkpoint").exists()
