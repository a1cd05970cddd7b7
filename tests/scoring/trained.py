"""A small trained model with every kind of feature, and its publication."""

import dataclasses
import os
import pathlib
import shutil
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from ctr_trainer.data.reader import BatchReader
from ctr_trainer.embedding.snapshot import snapshot
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.estimator import Estimator, RunConfig
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.live.publication.records import Record
from ctr_trainer.live.publication.spool import Spool
from ctr_trainer.models.params import ModelParams
from tests import small, small_served
from tests.constant import CONSTANT

NAME = "small"
# Of the context of a request, of the context and a candidate, and of a candidate.
_CROSSES = """
[[cross]]
columns = ["user", "age_group"]
[[cross]]
columns = ["item", "device"]
[[cross]]
columns = ["price_level", "item"]
max_rows = 30
"""


@dataclasses.dataclass(frozen=True)
class Trained:
    """A model with two checkpoints.

    Attributes:
      estimator: of the model.
      checkpoints: the two, older first.
      instances: 100 raw examples as JSON has them; half of them have values that training never saw.
      expected: for each checkpoint, float32[100], the probabilities that `predict` gives for these examples.
    """

    estimator: Estimator
    checkpoints: list
    instances: list
    expected: list


def train(directory, hidden_units=(8,)):
    """Trains below a directory, and returns `Trained`."""
    data = small.make(directory, rows=600, more=_CROSSES)
    small_served.write(directory)
    params = ModelParams(TrainOp("adagrad", 0.1, 0.3, **CONSTANT), hidden_units=hidden_units, batch_norm=True)
    estimator = Estimator(small_served.model_fn, directory / "model", params, RunConfig(threads=1))
    checkpoints, expected = [], []
    for epochs in (1, 2):
        estimator.train(lambda epochs=epochs: BatchReader(data, 32, epochs=epochs))
        checkpoints.append(estimator.latest_checkpoint())
        predicted = estimator.predict(lambda: BatchReader(directory / "served", 32, shuffle=False, epochs=1))
        expected.append(np.array([example["probabilities"] for example in predicted]))
    return Trained(estimator, checkpoints, small_served.examples(directory / "served.csv"), expected)


class Publishing:
    """Publishes checkpoints of a model one after the other, as a training does, but each with all of its rows.

    Args:
      more_rows: how many rows of each table are added, of keys that no example has.
      stream: see `Record`.

    Attributes:
      spool: the `Spool` that is written.
    """

    def __init__(
        self, url: str | os.PathLike, model: Trained, more_rows: int = 0, stream: dict[str, float] | None = None
    ) -> None:
        self._model, self._more_rows, self._graph = model, more_rows, b""
        configs = [*model.checkpoints[0].table_configs().values()]
        self.spool = Spool(url, NAME, self._write_rows, configs, "float32", (lambda: stream) if stream else None)

    def publish(self, number: int, change: Callable[[str], None] | None = None, new_graph: bool = False) -> Record:
        """Publishes a checkpoint by its number.

        Args:
          change: f(directory of the tower) that changes it before it is published.
          new_graph: whether the tower has its own graph, and not that of the first one as in a training. (Two exports
            in one process name gradient functions differently.)
        """
        self._checkpoint = self._model.checkpoints[number]

        def write_tower(path: str) -> None:
            exported = pathlib.Path(self._model.estimator.model_dir).parent / "towers" / str(self._checkpoint.step)
            if not exported.exists():
                self._model.estimator.export_to(str(exported), checkpoint_path=self._checkpoint, rows="none")
            shutil.copytree(exported, path, dirs_exist_ok=True)
            if change is not None:
                change(path)
            graph = pathlib.Path(path, tf.saved_model.SAVED_MODEL_FILENAME_PB)
            self._graph = graph.read_bytes() if new_graph or not self._graph else self._graph
            graph.write_bytes(self._graph)

        return self.spool.write(self._checkpoint.step, write_tower)

    def _write_rows(self, path: str, epoch: int, dtype: str, after: int | None) -> list:
        store = LocalStore(is_published=True)
        more = np.unique(np.random.default_rng(0).integers(1 << 40, 1 << 62, self._more_rows))
        blocks = snapshot.iterate(self._checkpoint.path, self._checkpoint.tables)
        for number, (config, keys, rows) in enumerate(blocks):
            if config.name not in store.tables:
                store.create_table(config)
                store.put(config.name, more, np.zeros((len(more), rows.shape[1]), np.float32), "more", 0)
            store.put(config.name, keys, rows, "a test", number)
        return store.publish(path, epoch, dtype)


def not_finite(tower: str) -> None:
    """Gives the variables of a tower the values of a model that has diverged."""
    prefix = os.path.join(tower, "variables", "variables")
    saved = tf.train.load_checkpoint(prefix)
    values = {name: saved.get_tensor(name) for name in saved.get_variable_to_shape_map()}
    diverged = [np.full_like(value, np.nan) if value.dtype.kind == "f" else value for value in values.values()]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tensors, everywhere = list(map(tf.constant, diverged)), [""] * len(values)
        session.run(
            tf.raw_ops.SaveV2(prefix=prefix, tensor_names=list(values), shape_and_slices=everywhere, tensors=tensors)
        )
