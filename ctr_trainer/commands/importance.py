"""Measures by how much a model's predictions become worse when the values of one column are permuted among the rows.

    auc_drop = AUC of the rows - AUC with the column permuted    logloss_rise = log loss with it permuted - log loss

The intervals are of Student's t, at 95%, over the permutations. Of two columns that say the same, each alone seems
unimportant. --output=FILE.json also writes the figures, --output=FILE.png draws them.

Source: Breiman, Random Forests, Machine Learning 2001, section 10.
"""

import contextlib
import dataclasses
import importlib.util
import itertools
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ctr_trainer.commands.experiment.checks import require_data, require_model
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.commands.experiment.flags import OF_DATA, OF_MODELS
from ctr_trainer.data.blocks import WEIGHT, WEIGHTS_PREFIX, label_columns
from ctr_trainer.data.source import ComputedSource, Source
from ctr_trainer.settings.by_flag import alike, require
from ctr_trainer.settings.command_flags import TrainedModelFlags
from ctr_trainer.settings.setting import Settings, setting
from ctr_trainer.system.files import outputs
from ctr_trainer.system.files.local_path import refusing_unwritable
from ctr_trainer.system.files.paths import Path, path_of
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import tensorflow_import

if TYPE_CHECKING:
    from ctr_trainer.checkpoint.checkpoint import Checkpoint
    from ctr_trainer.estimator import Estimator


@dataclasses.dataclass(frozen=True)
class ImportanceFlags(Settings, title="Importance"):
    repeats: int = setting(5, "permutations of each column; an interval needs two", "permutations", minimum=2)
    rows: int = setting(20_000, "largest number of rows to measure; from more rows, so many are drawn", minimum=2)


GROUPS = (Experiment, TrainedModelFlags, ImportanceFlags)
TAKES = (*OF_MODELS, *OF_DATA, "max_bad_rows", "seed", "output", "repeats", "rows")
EXAMPLES = (
    "python -m ctr_trainer importance --model_dir=demo/model --eval_data=demo/data/test",
    "horovodrun -np 2 python -m ctr_trainer importance --flagfile=configs/demo.flags --output=importance.json",
    "python -m ctr_trainer importance --model_dir=model --eval_data='day_7.csv' --repeats=20 --output=importance.png",
)

_FILES = (".json", ".png")
_TITLES = {"auc_drop": "AUC lost", "logloss_rise": "log loss gained"}
_MARK = b"ctr_trainer importance"  # In each file that this command writes.
# The 97.5% quantile of Student's t with 1, 2, ... degrees of freedom.
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)


def run(given: frozenset[str], experiment: Experiment, use: TrainedModelFlags, flags: ImportanceFlags) -> None:
    """Measures on all workers; rank 0 prints a table, and a last line of JSON."""
    path = experiment.data.eval_data
    require(experiment.data, "eval_data")
    require_model(experiment.model)
    require_data(path, experiment)
    if use.output and path_of(use.output).suffix not in _FILES:
        raise UserError(f"--output={use.output}: importance writes {' or '.join(f'a FILE{each}' for each in _FILES)}")
    if use.output.endswith(".png") and not importlib.util.find_spec("matplotlib"):
        raise UserError(f"--output={use.output} needs the package matplotlib: pip install 'ctr_trainer[plots]'")

    tensorflow_import.load()
    from ctr_trainer.commands.experiment.build import open_trained
    from ctr_trainer.commands.experiment.open_source import open_source
    from ctr_trainer.ranks import distributed

    distributed.init(experiment.workers.stall_timeout, pin_cores=True, flags=alike(experiment))
    if use.output and distributed.is_chief():
        outputs.refuse_overlap(use.output, path.split(","), path.split(","))
        outputs.refuse_foreign_file(use.output, _is_ours, "importance")
    trained = open_trained(given, experiment, use.checkpoint)
    source = open_source(path, trained[0], warns=False)
    found = measure(source, trained, flags.repeats, flags.rows, trained[0].run.seed)
    if distributed.is_chief():
        _show(found, use.output)


def measure(
    source: Source, trained: tuple[Experiment, "Estimator", "Checkpoint"], repeats: int, rows: int, seed: int
) -> dict[str, Any]:
    """Returns `auc`, `logloss` and `examples` of the rows, and `columns`, see `ClickModel.importance`. A collective."""
    from ctr_trainer.commands.experiment.build import reader
    from ctr_trainer.models.metrics.click_metrics import ClickMetrics
    from ctr_trainer.ranks import distributed

    (experiment, estimator, checkpoint), spec, table = trained, source.spec, source.sample(rows, seed)
    moved: dict[str, list[str]] = {}
    for feature in sorted(spec.features, key=lambda each: each.column):
        moved.setdefault(feature.column, []).extend((feature.name, WEIGHTS_PREFIX + feature.name))
    groups = [[], *(names for names in moved.values() for _ in range(repeats))]

    def permuted(_: Source, group: int) -> pa.Table:
        order = pa.array(np.random.default_rng([seed, group]).permutation(len(table)))
        names = table.column_names
        return pa.table([table[each].take(order) if each in groups[group] else table[each] for each in names], names)

    rows_of_groups = [len(table)] * len(groups)
    batches = reader(experiment, ComputedSource(source, spec, rows_of_groups, permuted), once=True)
    predicted: Any = estimator.predict(lambda: batches, checkpoint_path=checkpoint, yield_single_examples=False)
    with contextlib.closing(predicted):  # Before its end, which reports permuted crosses as new keys.
        parts = list(itertools.islice(predicted, batches.steps))
    found_logits = [name for name in parts[0] if name.split("/")[0] == "logits"]
    if len(found_logits) != 1:
        raise UserError(f"importance is of one label; the model predicts {', '.join(parts[0])}")
    logits = distributed.all_gather(np.concatenate([each[found_logits[0]] for each in parts]), "importance")
    columns = {label.name: name for name, label in label_columns(spec).items()}
    labels = table[columns.get(experiment.params.label) or next(iter(columns.values()))].to_numpy()
    weights = table[WEIGHT].to_numpy() if spec.weight else np.ones(len(table), np.float32)
    results = []
    for each in logits.reshape(-1, len(table)):
        metrics = ClickMetrics()
        metrics.update(each, labels, weights)
        results.append([metrics.results()[name] for name in ("auc", "xentropy_mean")])
    auc, loss = np.transpose(results)
    worse = {"auc_drop": auc[0] - auc[1:], "logloss_rise": loss[1:] - loss[0]}
    found: list[dict[str, Any]] = []
    for at, column in enumerate(moved):
        values = {name: each.reshape(-1, repeats)[at] for name, each in worse.items()}
        figures = {name: float(each.mean()) for name, each in values.items()}
        figures |= {f"{name}_error": _error(each) for name, each in values.items()}
        found.append({"column": column, **figures})
    found.sort(key=lambda each: -each["logloss_rise"])
    return {"examples": len(table), "auc": float(auc[0]), "logloss": float(loss[0]), "columns": found}


def _error(values: np.ndarray) -> float:
    """Returns half the width of the 95% interval of the mean."""
    freedom = len(values) - 1
    quantile = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else 1.96 + 2.4 / freedom
    return float(quantile * values.std(ddof=1) / math.sqrt(len(values)))


def _show(found: dict[str, Any], output: str) -> None:
    from ctr_trainer.checkpoint.evaluations import without_nan
    from ctr_trainer.commands.reports.comparison import format_table

    cells = [
        [each["column"], *(f"{each[name]:.5f} ±{each[f'{name}_error']:.5f}" for name in _TITLES)]
        for each in found["columns"]
    ]
    print("\n".join(format_table(["column", *_TITLES.values()], cells)))
    print(json.dumps(without_nan(found)), flush=True)
    if output.endswith(".json"):
        path_of(output).write_json({"written_by": _MARK.decode(), **without_nan(found)})
    elif output:
        with refusing_unwritable(output):
            path_of(output).parent.mkdir(parents=True, exist_ok=True)
            with path_of(output).writing() as file:
                _draw(found["columns"][::-1], file)


def _draw(columns: Sequence[dict[str, Any]], file: Any) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 1.5 + 0.25 * len(columns)), layout="constrained")
    names = [each["column"] for each in columns]
    for axis, (name, title) in zip(figure.subplots(1, 2, sharey=True), _TITLES.items(), strict=True):
        axis.barh(names, [each[name] for each in columns], xerr=[each[f"{name}_error"] for each in columns])
        axis.set_xlabel(title)
    figure.savefig(file, format="png", metadata={"Software": _MARK.decode()})


def _is_ours(path: Path) -> bool:
    """Returns whether this command wrote a file."""
    return _MARK in next(path_of(path).blocks(1 << 10), b"")
