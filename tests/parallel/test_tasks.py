import json

import pytest

from ctr_trainer import distributed
from tests import small
from tests.models import tasks
from tests.parallel import launch

ROWS, STEPS = 600, 20


def test_models_of_histories_and_labels_train_resume_and_evaluate_on_two_workers(tmp_path):
    """What the two evaluate on their shares is what one process says of the same checkpoint."""
    data = [small.make(tmp_path / f"labels{labels}", ROWS, labels=labels) for labels in (1, 2)]
    launch.run(2, launch.WORKERS / "tasks.py", *data, tmp_path, STEPS)
    first, second = (json.loads((tmp_path / f"metrics-{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    distributed.init()
    for case, (labels, _, _) in tasks.CASES.items():
        alone = tasks.estimator(case, tmp_path / case).evaluate(lambda labels=labels: tasks.once(data[labels - 1]))
        assert alone["global_step"] == STEPS
        assert alone["examples"] == ROWS
        assert first[case] == pytest.approx(alone, abs=1e-5), case
