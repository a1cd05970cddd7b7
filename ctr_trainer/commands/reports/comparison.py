"""Formats evaluations and phases as text, and compares runs in tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from ctr_trainer.commands.reports.training_run import Curve, Run, best
from ctr_trainer.system.measuring.clock import STEP_TITLES

_DECILE = ("prob_mean", "real_mean", "copc")
_MOVED = ("psi", "missing", "missing_before", "new_keys", "new_keys_in_training")
_ROWS = 10  # Of the table of a metric by examples.
# Flags that always differ between runs, so a difference means nothing.
_PLACES = {"model_dir", "export_dir", "output", "checkpoint"}


def format_metrics(results: Mapping[str, Any]) -> str:
    """Formats the results of `Estimator.evaluate` as text: one metric per line, then each reliability table."""
    tables = {name: rows for name, rows in results.items() if name.startswith("reliability")}
    slices = {name: found for name, found in results.items() if name.partition("/")[0] == "by"}
    metrics = {name: value for name, value in results.items() if name not in {*tables, *slices, "new_keys", "moved"}}
    width = max(map(len, metrics))
    lines = [f"{name:<{width}}  {format_value(value)}" for name, value in metrics.items()]
    for name, rows in tables.items():
        lines += ["", f"{name}: by decile of the prediction"]
        numbers = [(f"{row['decile']}", f"{row['weight']:,.10g}") for row in rows]
        means = [[format_value(row[each]) for each in _DECILE] for row in rows]
        cells = [[*first, *rest] for first, rest in zip(numbers, means, strict=True)]
        lines += format_table(["decile", "examples", "predicted", "happened", "copc"], cells)
    for name, found in slices.items():
        for kind, about in (("largest", ""), ("worst", ": the worst by normalized entropy")):
            cells = [[format_value(value) for value in row.values()] for row in found[kind]]
            if cells:
                lines += ["", f"{name} {found['column']}{about}"]
                lines += format_table([title.replace("_", " ") for title in found[kind][0]], cells)
    if moved := results.get("moved"):
        lines += ["", f"moved since {moved['against']}, the most first:"]
        cells = [[each["feature"], *(format_value(each.get(name)) for name in _MOVED)] for each in moved["features"]]
        lines += [*format_table(["feature", *(name.replace("_", " ") for name in _MOVED)], cells), ""]
        lines += moved["sentences"]
    return "\n".join(lines)


def format_value(value: Any) -> str:
    """Returns a float with five digits after the point, an integer in full, a text unchanged, and `-` for None."""
    if value is None or isinstance(value, str):
        return value or "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.5f}"


def format_phases(result: Mapping[str, Any]) -> list[str]:
    """Returns lines with the phases of a step, and the memory of the run, from an `Estimator.train` result.

    The phases are those of rank 0. The memory of a worker, the service and a GPU are means over all ranks.
    """
    phases = result["phases"]
    if phases is None:
        return ["phases of a step: the run was too short, no step followed the profiled ones"]
    step = phases["step_seconds"]
    traced = f"{phases['traced_steps']} traced of {phases['steps']} steps"
    lines = [f"phases of a step of {1000 * step:.2f} ms, from {traced}:"]
    for name, seconds in phases["seconds"].items():
        lines.append(f"  {STEP_TITLES[name]:<20}{1000 * seconds:>9.2f} ms{seconds / step:>8.1%}")
    lines.append(f"  {'accounted':<20}{'':>12}{phases['accounted']:>8.1%}")
    gpu = result["gpu"] or {"bytes": {"mean": None}}
    memory = {
        "worker's memory": result["resident_bytes"]["mean"],
        "service's memory": result["service_resident_bytes"],
        "GPU's memory": gpu["bytes"]["mean"],
    }
    return lines + [f"  {title:<20}{bytes_ / 1e6:>9,.0f} MB" for title, bytes_ in memory.items() if bytes_ is not None]


def format_comparison(runs: list[Run]) -> str:
    """Returns a table with a row per run, the AUC by trained examples, and a table of the settings that differ.

    The metrics are from the last and from the best evaluation, the latter with the examples that were trained by then.
    """
    columns = [("run", [run.name for run in runs]), ("steps", [f"{run.steps:,}" for run in runs])]
    columns.append(("examples", [format_value(run.examples(run.steps)) for run in runs]))
    rates = [run.examples_per_sec for run in runs]
    columns.append(("examples/s", ["-" if rate is None else f"{rate:,.0f}" for rate in rates]))
    names = dict.fromkeys(name for run in runs for line in run.evaluations for name in line)
    for base, title, direction in (("auc", "AUC", "max"), ("logloss", "log loss", "min")):
        for name in (name for name in names if name.partition("/")[0] == base):
            heading = f"{title} {name.partition('/')[2]}".strip()
            curves = [run.curve(name) for run in runs]
            columns.append((heading, [format_value(curve[-1][1] if curve else None) for curve in curves]))
            bests = [_best(run, curve, direction) for run, curve in zip(runs, curves, strict=True)]
            columns.append((f"best {heading}", bests))
    lines = _table(columns)
    for name in (name for name in names if name.partition("/")[0] == "auc"):
        lines += _by_examples(runs, name)
    differing = _differing(runs)
    if differing:
        lines += ["", "settings that differ:"]
        columns = [(run.name, [values[at] for values in differing.values()]) for at, run in enumerate(runs)]
        lines += _table([("setting", list(differing)), *columns])
    elif len(runs) > 1:
        lines += ["", "no setting differs"]
    return "\n".join(lines)


def _best(run: Run, curve: Curve, direction: str) -> str:
    point = best(curve, direction)
    return f"{format_value(point[1])} @{format_value(run.examples(point[0]))}" if point else "-"


def _by_examples(runs: Sequence[Run], name: str) -> list[str]:
    """Returns a table of a metric: by up to ten numbers of examples, the last evaluation of each run until then."""
    found = [[(run.examples(step), value) for step, value in run.curve(name)] for run in runs]
    curves = [[(at, value) for at, value in curve if at is not None] for curve in found]
    known = sorted({at for curve in curves for at, _ in curve})
    if len(known) < 2:
        return []
    places = sorted({known[round(number * (len(known) - 1) / (_ROWS - 1))] for number in range(_ROWS)})

    def cell(curve: Curve, place: int) -> str:
        until = [value for at, value in curve if at <= place]
        return format_value(until[-1]) if until and place <= curve[-1][0] else "-"

    columns = [(run.name, [cell(curve, at) for at in places]) for run, curve in zip(runs, curves, strict=True)]
    return ["", f"{name} by examples:", *_table([("examples", [f"{at:,}" for at in places]), *columns])]


def _differing(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Returns the values in all runs by flag, for flags that differ; `-` for a run without the flag."""
    names = dict.fromkeys(name for run in runs for name in run.settings if name not in _PLACES)
    texts = {name: [_text(run.settings.get(name, "-")) for run in runs] for name in names}
    return {name: values for name, values in texts.items() if len(set(values)) > 1}


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value) if value != "" else '""'


def _table(columns: list[tuple[str, list[str]]]) -> list[str]:
    return format_table([title for title, _ in columns], [*zip(*(cells for _, cells in columns), strict=True)])


def format_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a table. The first column is aligned to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    lines = []
    for first, *others in (headings, *rows):
        cells = [first.ljust(widths[0]), *(text.rjust(w) for text, w in zip(others, widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines
