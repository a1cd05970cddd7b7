"""configs/recipe.flags runs the six steps of Horovod's recipe, and the log names the exchange of each configuration."""

import json
import re

import pytest

from tests import small
from tests.parallel import launch

pytestmark = pytest.mark.integration

STEPS = 12
PROGRAM = launch.WORKERS / "recipe.py"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return small.make(tmp_path_factory.mktemp("recipe"), rows=3000)


def _job(data, model_dir, *flags):
    """Returns the calls that each rank counted, and what the log says of the exchange."""
    given = [f"--train_data={data}", "--eval_data=", f"--model_dir={model_dir}", f"--max_steps={STEPS}"]
    given += ["--batch_size=16", "--hidden_units=8", "--epochs=100"]
    done = launch.run(2, PROGRAM, *flags, *given)
    counts = [json.loads(line.partition("calls: ")[2]) for line in done.stdout.splitlines() if "calls: " in line]
    assert len(counts) == 2
    return counts, re.findall(r"gradient exchange: (.*)", done.stderr)


def test_the_recipe_file_makes_the_calls_of_the_six_steps_and_no_others(data, tmp_path):
    counts, said = _job(data, tmp_path / "model", f"--flagfile={launch.ROOT}/configs/recipe.flags")
    expected = {"session_runs": STEPS, "distributed_optimizers": 1, "broadcast_hooks": 1, "host_sums": 0}
    assert counts == [expected] * 2
    assert said == ["hvd.DistributedOptimizer, because dense_exchange=horovod was chosen"]  # Rank 0 alone says it.


def test_the_defaults_run_the_session_once_per_step(data, tmp_path):
    counts, said = _job(data, tmp_path / "model", f"--flagfile={launch.ROOT}/configs/demo.flags")
    expected = {"session_runs": STEPS, "distributed_optimizers": 0, "broadcast_hooks": 1, "host_sums": 1}
    assert counts == [expected] * 2
    assert said == ["HostSum, through shared memory, because all 2 workers compute on the CPUs of one host"]


def test_the_log_names_averages_of_variables(data, tmp_path):
    counts, said = _job(data, tmp_path / "model", "--model=deepfm", "--dense_sync_steps=4")
    assert [each["distributed_optimizers"] for each in counts] == [0, 0]
    assert said == [
        "none; every 4 steps the workers average their dense variables through shared memory, because "
        "dense_sync_steps=4 was chosen"
    ]
