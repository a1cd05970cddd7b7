"""The metrics of one evaluation, and the phases of a training step, as text."""

from collections.abc import Mapping
from typing import Any

from ctr_trainer.system.measuring.phases import STEP_TITLES


def format_metrics(results: Mapping[str, Any]) -> str:
    """Makes the text of an evaluation: one metric per line, then each reliability table.

    Args:
      results: what `Estimator.evaluate` returned; None for a metric that is not defined.

    Returns:
      the text.
    """
    tables = {name: rows for name, rows in results.items() if name.startswith("reliability")}
    metrics = {name: value for name, value in results.items() if name not in tables}
    width = max(map(len, metrics))
    lines = [f"{name:<{width}}  {format_value(value)}" for name, value in metrics.items()]
    for name, rows in tables.items():
        lines += ["", f"{name}: by decile of the prediction"]
        lines.append(f"{'decile':>6}{'examples':>14}{'predicted':>12}{'happened':>12}{'copc':>9}")
        for row in rows:
            figures = "".join(
                f"{format_value(row[k]):>{w}}" for k, w in (("prob_mean", 12), ("real_mean", 12), ("copc", 9))
            )
            lines.append(f"{row['decile']:>6}{row['weight']:>14,.10g}{figures}")
    return "\n".join(lines)


def format_value(value: Any) -> str:
    """Returns a figure with five digits after the point, a count in full, a text as it is, and `-` for None."""
    if value is None or isinstance(value, str):
        return value or "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.5f}"


def format_phases(result: Mapping[str, Any]) -> list[str]:
    """Lists the phases of a step, and the locks and memory of the run.

    The phases are of rank 0. The shares of time at the rows' lock, over the whole run, and the memory of a
    worker, of the service and of a GPU are means over all ranks.

    Args:
      result: what `Estimator.train` returned with `phase_steps`.

    Returns:
      list of lines.
    """
    phases = result["phases"]
    if phases is None:
        return ["phases of a step: the run was too short, no step was traced after the first phase_steps"]
    step = phases["step_seconds"]
    lines = [
        f"phases of a step of {1000 * step:.2f} ms, from {phases['traced_steps']} traced of {phases['steps']} steps:"
    ]
    for name, seconds in phases["seconds"].items():
        lines.append(f"  {STEP_TITLES[name]:<20}{1000 * seconds:>9.2f} ms{seconds / step:>8.1%}")
    lines.append(f"  {'accounted':<20}{'':>12}{phases['accounted']:>8.1%}")
    for title, key in (("row lock waited for", "row_lock_wait_percent"), ("row lock held", "row_lock_held_percent")):
        if result[key] is not None:
            lines.append(f"  {title:<20}{'':>12}{result[key] / 100:>8.2%}")
    gpu = result["gpu"] or {"bytes": {"mean": None}}
    memory = {
        "worker's memory": result["resident_bytes"]["mean"],
        "service's memory": result["service_resident_bytes"],
        "GPU's memory": gpu["bytes"]["mean"],
    }
    return lines + [f"  {title:<20}{bytes_ / 1e6:>9,.0f} MB" for title, bytes_ in memory.items() if bytes_ is not None]
