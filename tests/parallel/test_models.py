import json

import pytest
import tensorflow as tf

from ctr_trainer.models.registry import MODELS
from ctr_trainer.ranks import distributed
from tests import small
from tests.models import every
from tests.parallel import launch

ROWS, STEPS = 600, 16


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_model_trains_resumes_evaluates_and_exports_on_two_workers(tmp_path):
    """What the two evaluate on their shares is what one process says of the same checkpoint."""
    data = [small.make(tmp_path / f"labels{labels}", ROWS, labels=labels) for labels in (1, 2)]
    names = [next(iter(every.variants(model))) for model in MODELS]
    launch.run(2, launch.WORKERS / "models.py", *data, tmp_path, STEPS, *names, seconds=900)
    first, second = (json.loads((tmp_path / f"metrics-{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    distributed.init()
    for name in names:
        own = data[every.labels(name) - 1]
        alone = every.estimator(name, tmp_path / name).evaluate(lambda name=name, own=own: every.once(name, own))
        assert (alone["global_step"], alone["examples"]) == (STEPS, ROWS)
        # Reliability tables, which are no numbers, have a test of their own.
        numbers = {key: value for key, value in alone.items() if not isinstance(value, list)}
        assert {key: first[name][key] for key in numbers} == pytest.approx(numbers, abs=1e-5), name
        assert tf.saved_model.contains_saved_model(tmp_path / "export" / name)
