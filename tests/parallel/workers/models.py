"""Trains a variant of every model in one job; each rank writes its metrics.

Those named with a `+` train to the half, resume, have their rows in a service, and are exported by rank 0.

python models.py DATA_OF_ONE_LABEL DATA_OF_TWO OUT STEPS NAME...
"""

import contextlib
import json
import pathlib
import sys

from ctr_trainer.embedding.service.local_service import LocalService
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.embedding_config import SecurityFiles
from tests.models import every

*data, out, steps = sys.argv[1:5]
names, out, steps = sys.argv[5:], pathlib.Path(out), int(steps)
distributed.init(steps_exchange=False)  # As `train` does.
rank, size = distributed.rank(), distributed.size()


@contextlib.contextmanager
def service(model_dir):
    """Gives the EmbeddingConfig settings of one service for a model's life; `auto` would start one for each call."""
    with contextlib.ExitStack() as stack:
        address, token_file = None, model_dir / "token"
        if rank == 0:
            model_dir.mkdir(parents=True)
            own = stack.enter_context(LocalService(str(model_dir), str(model_dir / "service.log"), 60))
            address = own.address
            token_file.write_text(own.token)
        address = distributed.broadcast_object(address, "service")
        yield dict(service=address, security=SecurityFiles(str(token_file)))
        distributed.barrier("service_end")


def run(name, own, is_whole):
    """Trains a model, and returns the metrics."""
    with service(out / name) if is_whole else contextlib.nullcontext(dict(service="shared")) as rows:
        estimator = every.estimator(name, out / name, dict(rows, sync_steps=2))
        for last in (steps // 2, steps) if is_whole else (steps,):
            estimator.train(
                lambda position: every.reader(name, own, rank=rank, size=size, position=position), max_steps=last
            )
        metrics = estimator.evaluate(lambda: every.once(name, own, rank=rank, size=size))
        if rank == 0 and is_whole:
            estimator.export_to(out / "export" / name)
        return metrics


results = {}
for given in names:
    name = given.removeprefix("+")
    results[name] = run(name, data[every.labels(name) - 1], given != name)
(out / f"metrics-{rank}.json").write_text(json.dumps(results))
