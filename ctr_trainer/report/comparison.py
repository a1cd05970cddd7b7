"""Compares runs as text tables."""

from ctr_trainer.report.metrics_table import format_value
from ctr_trainer.report.training_run import Run, best, last

# Flags that differ between all runs, so that a difference says nothing.
_PLACES = {"model_dir", "export_dir", "output", "checkpoint"}
# The most characters of a line, where the names of the flags and one value leave so much room.
_WIDTH = 120


def metric_names(runs, base):
    """-> the names of a metric in the runs' figures, in order of appearance: `auc`, or `auc/click` and `auc/buy`."""
    names = dict.fromkeys(
        name for run in runs for line in (*run.evaluations, *run.training) for name in line if _base(name) == base
    )
    return list(names)


def format_comparison(runs: list[Run]) -> str:
    """Makes a table of the runs, and below it a table of the settings in which they differ.

    The first table has a row per run. The second has a row per setting and a column per run; columns that do not fit
    into a line are in further tables below. The metrics are those of the last and of the best evaluation. A run without
    evaluations has the metrics of the training's log, marked with a `*`.

    Args:
      runs: list of `Run`.

    Returns:
      the text.
    """
    columns = [("run", [run.name for run in runs]), ("steps", [f"{run.steps:,}" for run in runs])]
    rates = [run.examples_per_sec for run in runs]
    columns.append(("examples/s", ["-" if rate is None else f"{rate:,.0f}" for rate in rates]))
    for base, title, direction, in_training in (
        ("auc", "AUC", "max", "auc"),
        ("logloss", "log loss", "min", "xentropy_mean"),
    ):
        names = metric_names(runs, base) or metric_names(runs, in_training)
        for label in dict.fromkeys(name.partition("/")[2] for name in names):
            heading = f"{title} {label}".strip()
            curves = [_curve(run, base, in_training, label) for run in runs]
            columns.append((heading, [format_value(last(curve)) + mark for curve, mark in curves]))
            columns.append((f"best {heading}", [_best(curve, direction) for curve, _ in curves]))
    lines = _table(columns)
    if any("*" in cell for _, cells in columns[3:] for cell in cells):
        lines.append("* of the training's log: the run has no evaluations")
    differing = _differing(runs)
    if differing:
        lines += ["", "settings that differ:"]
        columns = [(run.name, [values[at] for values in differing.values()]) for at, run in enumerate(runs)]
        lines += _tables(("setting", list(differing)), columns)
    elif len(runs) > 1:
        lines += ["", "no setting differs"]
    return "\n".join(lines)


def _curve(run, base, in_training, label):
    """-> (curve of the evaluations, or of the training's log if there are none; the mark, "" or "*")."""
    evaluated = run.curve(f"{base}/{label}" if label else base, evaluated=True)
    if evaluated:
        return evaluated, ""
    trained = run.curve(f"{in_training}/{label}" if label else in_training, evaluated=False)
    return trained, "*" if trained else ""


def _base(name):
    return name.split("/")[0]


def _best(curve, direction):
    point = best(curve, direction)
    return f"{format_value(point[1])} @{point[0]:,}" if point else "-"


def _differing(runs):
    """-> dict of flag -> the value in each run, for flags that differ; `-` for a run without the flag."""
    names = dict.fromkeys(name for run in runs for name in run.settings if name not in _PLACES)
    texts = {name: [_text(run.settings.get(name, "-")) for run in runs] for name in names}
    return {name: values for name, values in texts.items() if len(set(values)) > 1}


def _text(value):
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value) if value != "" else '""'


def _tables(names: tuple[str, list[str]], columns: list[tuple[str, list[str]]]) -> list[str]:
    """Returns the lines of as many tables as the columns need, each with the column of names first."""
    tables, taken = [], []
    for column in columns:
        if taken and max(map(len, _table([names, *taken, column]))) > _WIDTH:
            tables.append(_table([names, *taken]))
            taken = []
        taken.append(column)
    tables.append(_table([names, *taken]))
    return [line for table in tables for line in ("", *table)][1:]


def _table(columns: list[tuple[str, list[str]]]) -> list[str]:
    """Returns the lines of a table."""
    widths = [max(map(len, (title, *cells))) for title, cells in columns]
    rows = [[title for title, _ in columns], *zip(*(cells for _, cells in columns), strict=True)]
    return ["  ".join(_padded(row, widths)).rstrip() for row in rows]


def _padded(row, widths):
    # The first column, of names, is aligned left, the columns of figures right.
    return [cell.ljust(w) if not i else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))]
