import json

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.ranks import distributed
from tests import small
from tests.models import every
from tests.parallel import launch

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1200)]
ROWS, STEPS = 101, 4
# Of a kind each: rows of another width, histories, two labels, an ensemble. One process trains, resumes and exports
# every model in tests/models; what two workers add to that is the same for all of them.
NAMES = ["ffm", "din", "esmm", "tabm"]
WHOLE = NAMES[:3]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """The (directory, metrics of each rank by model, data with one and with two labels) of a job."""
    out = tmp_path_factory.mktemp("models")
    data = [small.make(out / f"labels{labels}", ROWS, labels=labels) for labels in (1, 2)]
    names = [f"+{name}" if name in WHOLE else name for name in NAMES]
    launch.run(2, launch.WORKERS / "models.py", *data, out, STEPS, *names, seconds=900)
    return out, [json.loads((out / f"metrics-{rank}.json").read_text()) for rank in (0, 1)], data


def test_models_of_each_kind_train_and_evaluate_on_two_workers(job):
    _, (first, second), _ = job
    assert first == second
    assert list(first) == NAMES
    for name, metrics in first.items():
        assert (metrics["global_step"], metrics["examples"]) == (STEPS, ROWS), name
        assert np.isfinite(metrics["loss"]), name


@pytest.mark.parametrize("name", WHOLE)
def test_a_model_resumes_and_two_workers_evaluate_and_export_it_as_one_does(job, name):
    out, (metrics, _), data = job
    distributed.init()
    own = data[every.labels(name) - 1]
    alone = every.estimator(name, out / name).evaluate(lambda: every.once(name, own))
    assert (alone["global_step"], alone["examples"]) == (STEPS, ROWS)
    assert metrics[name]["new_keys"].keys() == alone["new_keys"].keys()
    # Reliability tables and shares of new keys, which are no numbers, have tests of their own.
    numbers = {key: value for key, value in alone.items() if not isinstance(value, (list, dict))}
    assert {key: metrics[name][key] for key in numbers} == pytest.approx(numbers, abs=1e-5)
    assert tf.saved_model.contains_saved_model(out / "export" / name)
