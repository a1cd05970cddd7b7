"""Trains the named models one after another, stopping half-way; each rank writes their metrics, rank 0 their exports.

python models.py DATA_OF_ONE_LABEL DATA_OF_TWO OUT STEPS NAME...
"""

import json
import pathlib
import sys

from ctr_trainer import distributed
from tests.models import every

*data, out, steps = sys.argv[1:5]
names = sys.argv[5:]
out, steps = pathlib.Path(out), int(steps)
distributed.init()
rank, size = distributed.rank(), distributed.size()
results = {}
for name in names:
    own = data[every.labels(name) - 1]
    estimator = every.estimator(name, out / name, dict(sync_steps=5))
    for last in (steps // 2, steps):
        estimator.train(
            lambda position, name=name, own=own: every.reader(name, own, rank=rank, size=size, position=position),
            max_steps=last,
        )
    results[name] = estimator.evaluate(lambda name=name, own=own: every.once(name, own, rank=rank, size=size))
    if rank == 0:
        estimator.export_to(out / "export" / name)
(out / f"metrics-{rank}.json").write_text(json.dumps(results))
