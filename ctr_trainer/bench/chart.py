"""Draws the figures of several rounds as charts."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ctr_trainer.bench.report import Figure

if TYPE_CHECKING:  # matplotlib takes a second to import, so only the first chart imports it.
    from matplotlib.figure import Figure as Picture

_MARKERS = "osD^v"
_MOST_TICKS = 12


def draw_bars(path: str, title: str, unit: str, bars: Mapping[str, Figure | None]) -> None:
    """Writes a PNG of horizontal bars; one without a figure is left out.

    A bar's length is the median; a line on it shows the range.
    """
    figure, axes = _figure(title)
    shown = {name: bar for name, bar in bars.items() if bar is not None}
    medians, ranges = [bar.median for bar in shown.values()], _ranges(shown.values())
    axes.barh(list(shown), medians, xerr=ranges, color="C0", ecolor="0.3", capsize=3)
    axes.invert_yaxis()  # The first bar is at the top, as in the table.
    axes.set_xlabel(unit)
    axes.grid(axis="x", alpha=0.3)
    _save(figure, path)


def draw_lines(
    path: str, title: str, x_label: str, y_label: str, lines: Mapping[str, Sequence[tuple[float, Figure]]]
) -> None:
    """Writes a PNG of lines through points (x, y). The ranges are drawn as areas."""
    figure, axes = _figure(title)
    for number, (name, points) in enumerate(lines.items()):
        color = f"C{number % 10}"
        xs = [x for x, _ in points]
        axes.plot(xs, [y.median for _, y in points], marker="o", markersize=4, color=color, label=name)
        lows, highs = [min(y.values) for _, y in points], [max(y.values) for _, y in points]
        axes.fill_between(xs, lows, highs, color=color, alpha=0.15)
    axes.set_ylim(bottom=0)
    ticks = sorted({x for points in lines.values() for x, _ in points})
    if len(ticks) <= _MOST_TICKS:
        axes.set_xticks(ticks)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    axes.legend()
    _save(figure, path)


def draw_points(
    path: str, title: str, x_label: str, y_label: str, points: Mapping[str, tuple[Figure | None, Figure | None]]
) -> None:
    """Writes a PNG of points (x, y) with their ranges; a point without one of its figures is left out."""
    figure, axes = _figure(title)
    for number, (name, (x, y)) in enumerate(points.items()):
        if x is None or y is None:
            continue
        marker = _MARKERS[number // 10 % len(_MARKERS)]  # There are ten colours, so ten points share a marker.
        style = dict(elinewidth=0.8, color=f"C{number % 10}", fmt=marker, label=name)
        axes.errorbar([x.median], [y.median], xerr=_ranges([x]), yerr=_ranges([y]), **style)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="small")
    _save(figure, path)


def draw_stacks(path: str, title: str, unit: str, stacks: Mapping[str, Mapping[str, float]]) -> None:
    """Writes a PNG with one horizontal bar for each name, stacked from its parts, which have one colour in all bars."""
    figure, axes = _figure(title)
    names = list(stacks)
    left = [0.0] * len(names)
    for number, part in enumerate(dict.fromkeys(part for parts in stacks.values() for part in parts)):
        values = [stacks[name].get(part, 0.0) for name in names]
        hatch = "//" if number >= 10 else None  # There are ten colours, so the next ten parts are hatched.
        axes.barh(names, values, left=left, color=f"C{number % 10}", hatch=hatch, label=part)
        left = [start + value for start, value in zip(left, values, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    figure.legend(loc="outside lower center", ncols=4, fontsize="small")
    _save(figure, path)


def _ranges(figures: Iterable[Figure]) -> list[list[float]]:
    """Returns how far each range extends below its median, and how far above."""
    values = [(each.median - min(each.values), max(each.values) - each.median) for each in figures]
    return [[low for low, _ in values], [high for _, high in values]]


def _figure(title: str) -> "tuple[Picture, Any]":
    # Without pyplot, no display is needed and no global state is changed.
    from matplotlib.figure import Figure as Picture

    figure = Picture(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title)
    return figure, axes


def _save(figure: "Picture", path: str) -> None:
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    figure.savefig(path, dpi=120)
