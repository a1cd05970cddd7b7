"""The importance of columns: how much worse the predictions become when the values of a column are permuted."""

import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctr_trainer.models.metrics.click_metrics import ClickMetrics

# The 97.5% quantile of Student's t with 1, 2, ... degrees of freedom.
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)


def measure(
    table: pa.Table,
    columns: Sequence[str],
    repeats: int,
    seed: int,
    work: pathlib.Path,
    labels_of: Callable[[str], tuple[np.ndarray, np.ndarray]],
    logits_of: Callable[[str], np.ndarray],
) -> list[dict[str, Any]]:
    """Returns the result of `ClickModel.importance`.

    Args:
      work: an empty directory for the permuted rows.
      labels_of, logits_of: f(path of a Parquet file) -> (labels, weights), float32[n], and -> logits, float32[n].
    """
    first, rest, rng = work / "first.parquet", work / "permuted.parquet", np.random.default_rng(seed)
    pq.write_table(table, first)
    with pq.ParquetWriter(rest, table.schema) as writer:
        writer.write_table(table)
        for name in (column for column in columns for _ in range(repeats)):
            place, values = table.column_names.index(name), table[name].take(rng.permutation(len(table)))
            writer.write_table(table.set_column(place, table.schema.field(name), values))
    labels, weights = labels_of(str(first))
    logits = logits_of(str(rest)).reshape(-1, len(table))
    auc, loss = np.transpose([_figures(each, labels, weights) for each in logits])
    drops, rises = (auc[0] - auc[1:]).reshape(-1, repeats), (loss[1:] - loss[0]).reshape(-1, repeats)
    found = []
    for column, drop, rise in zip(columns, drops, rises, strict=True):
        figures = {"auc_drop": drop.mean(), "auc_drop_error": _error(drop)}
        figures |= {"logloss_rise": rise.mean(), "logloss_rise_error": _error(rise)}
        found.append({"column": column, **{name: float(value) for name, value in figures.items()}})
    return sorted(found, key=lambda each: -each["auc_drop"])


def _figures(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    metrics = ClickMetrics()
    metrics.update(logits, labels, weights)
    results = metrics.results()
    return results["auc"], results["xentropy_mean"]


def _error(values: np.ndarray) -> float:
    """Returns half the width of the 95% interval of the mean."""
    freedom = len(values) - 1
    quantile = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else 1.96 + 2.4 / freedom
    return quantile * values.std(ddof=1) / math.sqrt(len(values))
