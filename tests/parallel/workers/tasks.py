"""Trains every case of tests/models/tasks.py in one job; rank 0 writes each one's metrics and predictions.

python tasks.py DATA_OF_ONE_LABEL DATA_OF_TWO OUT STEPS
"""

import json
import pathlib
import sys

from ctr_trainer import distributed
from tests.models import tasks

*data, out, steps = sys.argv[1:]
distributed.init()
rank, size = distributed.rank(), distributed.size()
results = {}
for case, (labels, _, _) in tasks.CASES.items():
    path, model_dir = data[labels - 1], pathlib.Path(out) / case
    tasks.train(case, model_dir, path, int(steps) // 2, rank, size)
    made = tasks.train(case, model_dir, path, int(steps), rank, size)
    results[case] = made.evaluate(lambda path=path: tasks.once(path, rank, size))
(pathlib.Path(out) / f"metrics-{rank}.json").write_text(json.dumps(results))
