"""A small trained model with every kind of feature, and its publication."""

import dataclasses
import json
import os
import pathlib
import shutil
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from ctr_trainer.checkpoint.checkpoint import Checkpoint
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.embedding.snapshot import packed_rows, snapshot
from ctr_trainer.embedding.snapshot.packed_rows import pack
from ctr_trainer.embedding.snapshot.snapshot import key_array
from ctr_trainer.embedding.snapshot.snapshot_writer import arrow_file
from ctr_trainer.estimator import Estimator, RunConfig
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.live.publication import records
from ctr_trainer.live.publication.records import Record
from ctr_trainer.models.params import ModelParams
from ctr_trainer.system.files.paths import bytes_and_crc32, path_of
from tests import small, small_served
from tests.constant import CONSTANT

NAME = "small"


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
    data = small.make(directory, rows=600)
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


def publish(
    url: str | os.PathLike,
    estimator: Estimator,
    checkpoint: Checkpoint,
    generation: int = 1,
    epoch: int = 0,
    dtype: str = "float32",
    holder: str = "a test",
    change: Callable[[str], None] | None = None,
    more_rows: int = 0,
    graph_of: Record | None = None,
    stream: dict[str, float] | None = None,
) -> Record:
    """Publishes all rows and the tower of a checkpoint as an epoch; the epoch 0 begins a generation of a holder.

    Args:
      change: f(directory of the tower) that changes it before it is published.
      more_rows: how many rows of each table are added, of keys that no example has.
      graph_of: an earlier record of the generation, whose graph the tower takes: a training exports its graph once. The
        towers of two checkpoints have different graphs, as two exports in one process name gradient functions
        differently.
      stream: see `Record`.
    """
    kind = records.EPOCH if epoch else records.BASE
    directory, name = records.generation_path(url, generation), records.name_of(kind, epoch)
    (directory / name).mkdir(parents=True, exist_ok=True)
    blocks = {}
    for config, keys, rows in snapshot.iterate(checkpoint.path, checkpoint.tables):
        blocks.setdefault(config.name, (config, []))[1].append((keys.copy(), rows[:, : config.weights].copy()))
    for config, parts in blocks.values():
        keys = np.unique(np.random.default_rng(0).integers(1 << 40, 1 << 62, more_rows))
        parts.append((keys, np.zeros((len(keys), config.weights), np.float32)))
    files = [_file(directory, name, *blocks[table], dtype, epoch) for table in sorted(blocks)]
    dense = records.dense_name(epoch)
    exported = pathlib.Path(estimator.model_dir).parent / "towers" / str(checkpoint.step)
    if not exported.exists():
        estimator.export_to(str(exported), checkpoint_path=checkpoint, rows="none")
    tower = str(shutil.copytree(exported, directory / dense))
    if change is not None:
        change(tower)
    if graph_of is not None:
        graph = tf.saved_model.SAVED_MODEL_FILENAME_PB
        path_of(os.path.join(tower, graph)).write_bytes((directory / graph_of.dense / graph).read_bytes())
    dense_files = []
    for at, _, names in os.walk(tower):
        for each in names:
            path = os.path.join(at, each)
            size, crc32 = bytes_and_crc32(path_of(path))
            dense_files.append({"file": os.path.relpath(path, tower), "bytes": size, "crc32": crc32})
    tables = json.loads(json.dumps([{"config": config.to_dict()} for config, _ in blocks.values()]))
    record = Record(
        NAME, generation, holder, epoch, kind, checkpoint.step, time.time(), dtype, tables, files, dense_files, stream
    )  # fmt: skip
    records.write_record(url, record)
    return record


def _file(directory, name, config, blocks, dtype, epoch):
    keys, rows = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    file = f"{name}/{packed_rows.file_name(config.name, packed_rows.ROWS)}"
    with arrow_file(path_of(directory), file, packed_rows.schema(config, dtype, packed_rows.ROWS)) as writing:
        writing.write([key_array(keys), packed_rows.value_array(pack(rows, config, dtype, epoch))])
        written = writing.finish()
    return dict(file=file, table=config.name, kind=packed_rows.ROWS, **written)


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
