"""Writes a checkpoint's predictions for --eval_data as Parquet, with the data's id columns.

The data needs no labels and no weights. Labels are written, too; those of text and TFRecords if every row has one.
"""

import contextlib
import itertools
import json
from typing import Any

from ctr_trainer.commands.experiment.checks import require_data, require_model
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.commands.experiment.flags import OF_DATA, OF_MODELS
from ctr_trainer.settings.by_flag import alike, require
from ctr_trainer.settings.command_flags import TrainedModelFlags
from ctr_trainer.system.files import outputs
from ctr_trainer.system.files.local_path import refusing_unwritable
from ctr_trainer.system.files.paths import Path, path_of
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import tensorflow_import

GROUPS = (Experiment, TrainedModelFlags)
TAKES = (*OF_MODELS, *OF_DATA, "max_bad_rows", "output")
EXAMPLES = (
    "python -m ctr_trainer predict --flagfile=configs/demo.flags --output=predictions.parquet",
    "horovodrun -np 2 python -m ctr_trainer predict --flagfile=configs/demo.flags --output=predictions.parquet",
    "python -m ctr_trainer predict --flagfile=configs/demo.flags --output=predictions.parquet --checkpoint=latest",
)

_MARK = {b"ctr_trainer": b"predictions"}


def run(given: frozenset[str], experiment: Experiment, use: TrainedModelFlags) -> None:
    """Predicts: each rank writes the predictions of its shard, and rank 0 prints their total number."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = experiment.data
    require(data, "eval_data")
    require(use, "output")
    if path_of(use.output).suffix != ".parquet":
        raise UserError(f"--output={use.output}: predict writes Parquet; name a FILE.parquet")
    require_model(experiment.model)
    require_data(data.eval_data, experiment)

    tensorflow_import.load()
    from ctr_trainer.commands.experiment.build import open_trained, reader
    from ctr_trainer.ranks import distributed

    distributed.init(experiment.workers.stall_timeout, pin_cores=True, flags=alike(experiment))
    path = _part(use.output, distributed.rank(), distributed.size())
    sources = data.eval_data.split(",")
    outputs.refuse_overlap(path, sources, sources)
    outputs.refuse_foreign_file(path, _is_ours, "predict")
    experiment, estimator, found = open_trained(given, experiment, use.checkpoint)
    batches = reader(experiment, data.eval_data, once=True, labels=False)
    predictions: Any = estimator.predict(lambda: batches, checkpoint_path=found, yield_single_examples=False)
    rows, types, writer = 0, batches.id_types(), None
    with contextlib.closing(predictions):
        first = [*itertools.islice(predictions, 1)]  # It restores the model, whose errors are not those of the output.
        with refusing_unwritable(path), contextlib.ExitStack() as stack:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.writing())
            for values in itertools.chain(first, predictions):
                # The values of one batch do not determine the type of an id column: all of them may be missing.
                kinds = (
                    (name, value, types.get(name) if value.dtype == object else None) for name, value in values.items()
                )
                table = pa.table({name: pa.array(value, kind) for name, value, kind in kinds}, metadata=_MARK)
                writer = writer or stack.enter_context(pq.ParquetWriter(file, table.schema, write_page_checksum=True))
                writer.write_table(table)
                rows += len(table)
    rows = int(distributed.all_sum(np.array(rows, np.int64), "predicted_rows"))
    new_keys = estimator.new_keys.report(distributed.all_sum)
    if distributed.is_chief():
        said = {"output": use.output, "examples": rows, "parts": distributed.size(), "global_step": found.step}
        print(json.dumps(said | new_keys), flush=True)


def _is_ours(path: Path) -> bool:
    """Returns whether this command wrote a file."""
    import pyarrow as pa

    try:
        with path_of(path).open_parquet() as file:
            return (file.schema_arrow.metadata or {}).items() >= _MARK.items()
    except (OSError, pa.ArrowInvalid):
        return False


def _part(output: str, rank: int, size: int) -> Path:
    """Returns the path of a rank's file: `output` for one rank, `name-00001-of-00002.parquet` for several."""
    path = path_of(output)
    return path if size == 1 else path.with_name(f"{path.stem}-{rank:05d}-of-{size:05d}{path.suffix}")
