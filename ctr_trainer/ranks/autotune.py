"""Horovod's autotuning, and the reuse of its result in later runs."""

import csv
import logging
import os
import pathlib

from ctr_trainer.system.files.outputs import refuse_foreign_file
from ctr_trainer.system.files.paths import is_local
from ctr_trainer.system.messages.errors import UserError

_FLAGS = {
    "hierarchical_allreduce": "HOROVOD_HIERARCHICAL_ALLREDUCE",
    "hierarchical_allgather": "HOROVOD_HIERARCHICAL_ALLGATHER",
    "torus_allreduce": "HOROVOD_TORUS_ALLREDUCE",
}
_SCORE = "score"
_COLUMNS = {"cache_enabled", "cycle_time_ms", "tensor_fusion_threshold", _SCORE}
_log = logging.getLogger(__name__)


def prepare(tune: bool, log_file: str, model_dir: str) -> str | None:
    """Configures Horovod by environment variables. Call it before Horovod starts, with equal arguments on all ranks.

    Args:
      tune: whether Horovod searches for its best settings, and writes a log.
      log_file: with `tune`, the path of the log; "" for autotune.csv in `model_dir`. Without `tune`, the log of an
        earlier search, whose best settings are used; "" for Horovod's defaults.

    Returns the path of the log that Horovod will write, or None.

    Raises:
      UserError: the log has no rows or is another file; or it cannot be written, because `model_dir` is in a store.
    """
    if tune:
        if not log_file and not is_local(model_dir):
            raise UserError(
                f"autotune: Horovod writes its log to a local file, but model_dir={model_dir} is in a store: set "
                "autotune_log=FILE"
            )
        path = os.path.abspath(log_file or os.path.join(model_dir, "autotune.csv"))
        refuse_foreign_file(path, _is_log, "train")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.environ.update(HOROVOD_AUTOTUNE="1", HOROVOD_AUTOTUNE_LOG=path)
        return path
    if log_file:
        row = best_row(log_file)
        os.environ.update(environment_of(row))
        _log.info("Horovod uses the settings in %s: %s", log_file, format_row(row))
    return None


def _is_log(path: str) -> bool:
    with open(path, errors="replace") as file:
        first = file.readline(1000)
    return not first or set(first.strip().split(",")) >= _COLUMNS


def best_row(path: str) -> dict[str, float]:
    """Returns the row of a log with the highest score, see `parse`. Raises UserError if the file is no such log."""
    try:
        rows = parse(pathlib.Path(path).read_text())
    except OSError as error:
        raise UserError(f"autotune_log={path}: {error.strerror}; a run with autotune writes it") from None
    except ValueError as error:
        raise UserError(f"autotune_log={path} is not a log of Horovod's autotuning: {error}") from None
    if not rows:
        raise UserError(
            f"autotune_log={path} has no row: the run with autotune had one worker, or was too short. Horovod "
            "writes a row per 5 * HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE (10) steps, after as many warm-up steps"
        )
    return max(rows, key=lambda row: row[_SCORE])


def report(path: str) -> None:
    """Logs the best settings of a search; call it on rank 0, at the end of training."""
    try:
        found = best_row(path)
    except UserError as error:
        _log.warning("%s", error)
        return
    _log.info("Horovod was fastest with %s; to use it in later runs, set autotune_log=%s", format_row(found), path)


def parse(text: str) -> list[dict[str, float]]:
    """Returns the rows of a log, column -> float. Raises ValueError for other columns, or a value that is no number.

    `cycle_time_ms` is in ms, `tensor_fusion_threshold` in MB and `score` in bytes per us. The others are 0 or 1.
    """
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    if not _COLUMNS <= set(reader.fieldnames or ()):
        raise ValueError(f"its columns are {reader.fieldnames}, without {', '.join(sorted(_COLUMNS))}")
    rows = []
    for row in reader:
        if None in row or None in row.values():
            raise ValueError(f"the number of values in line {reader.line_num} differs from the number of columns")
        rows.append({name: float(value) for name, value in row.items()})
    return rows


def environment_of(row: dict[str, float]) -> dict[str, str]:
    """Returns the environment variables that start Horovod with a row's settings."""
    return {
        "HOROVOD_CYCLE_TIME": f"{row['cycle_time_ms']:g}",
        "HOROVOD_FUSION_THRESHOLD": str(int(row["tensor_fusion_threshold"] * 1024 * 1024)),
        **({} if row["cache_enabled"] else {"HOROVOD_CACHE_CAPACITY": "0"}),
        **{variable: f"{row[name]:.0f}" for name, variable in _FLAGS.items() if name in row},
    }


def format_row(row: dict[str, float]) -> str:
    """Returns a row's settings as text: `cycle time 5 ms, fusion 4 MB, cache on`, then other settings that are on."""
    on = [name.replace("_", " ") for name in _FLAGS if row.get(name)]
    times = f"cycle time {row['cycle_time_ms']:g} ms, fusion {row['tensor_fusion_threshold']:g} MB"
    return ", ".join([times, f"cache {'on' if row['cache_enabled'] else 'off'}", *on])
