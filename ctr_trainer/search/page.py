"""The report page of a search: one HTML file without scripts or external resources."""

import dataclasses
import html as markup
from collections.abc import Mapping, Sequence
from typing import Any

_WIDTH, _HEIGHT, _MARGIN = 320, 150, 8
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-size: 13px; }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid #8886; white-space: nowrap; }
td.text { text-align: left; max-width: 30rem; overflow: hidden; text-overflow: ellipsis; }
.scroll { overflow-x: auto; }
.bar { display: grid; grid-template-columns: 16rem 1fr 4rem; gap: .6rem; align-items: center; margin: .15rem 0; }
.bar i { background: #2a78c4; height: .9rem; display: block; }
.plots { display: flex; flex-wrap: wrap; gap: 1rem; }
figure { margin: 0; } figcaption { font-size: 13px; }
svg { border: 1px solid #8886; } circle { fill: #2a78c4; } circle.stopped { fill: #999; opacity: .7; }
circle.best { fill: #d2691e; } polyline { fill: none; stroke: #d2691e; stroke-width: 1.5; }
"""


@dataclasses.dataclass(frozen=True)
class Point:
    """A trial in a plot, with the texts of its parameters by flag; {} for the user's settings."""

    number: int
    value: float
    texts: Mapping[str, str]
    is_complete: bool


def html(
    found: Mapping[str, Any],
    rows: Sequence[Mapping[str, str]],
    importances: Mapping[str, float],
    points: Sequence[Point],
    is_max: bool,
) -> str:
    """Returns the text of the page.

    `found` has the figures of `results.Found`, `rows` is the table of the trials, best first, `importances` has a
    number from 0 to 1 by flag, and `points` are the trials that have a value. `is_max` is whether larger is better.
    """
    metric = found["metric"]
    own = "" if found["own_value"] is None else f"; your settings reach {found['own_value']:.6g}"
    best = next(point for point in points if point.number == found["best_trial"])
    bars = "".join(
        f'<div class="bar"><span>{_e(name)}</span><i style="width:{100 * share:.1f}%"></i>{share:.1%}</div>'
        for name, share in importances.items()
    )
    flags = sorted({name for point in points for name in point.texts}, key=lambda name: -importances.get(name, 0.0))
    plots = "".join(_of_parameter(name, points, best, metric) for name in flags)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>search by {_e(metric)}</title><style>{_STYLE}</style></head><body>
<h1>Search by {_e(metric)}</h1>
<p>The best value on the validation data is <b>{found["value"]:.6g}</b>, in trial {found["best_trial"]}{own}.
{found["trials"]} trials have ended, of which {found["stopped"]} were stopped early and {found["failed"]} failed. In
total they trained on {found["rows"]:,} examples.
To train with the best settings, use the flagfile <code>{_e(found["flagfile"])}</code>.</p>
<h2>Importance of each setting</h2>
<p>The share of a setting in the difference between the best quarter of the trials and all trials (PED-ANOVA). A setting
of low importance does not need to be changed.</p>
{bars or "<p>There are too few trials to compute the importance.</p>"}
<h2>Trials</h2>
<p>Orange: the best trial, and the best value so far; blue: trained to the end; grey: stopped early, with the last
value.</p>
<div class="plots">{_over_time(points, best, metric, is_max)}{plots}</div>
<h2>Table</h2>
<p>Empty cells are your settings.</p>
<div class="scroll"><table>{_table(rows)}</table></div>
</body></html>
"""


def _e(text: object) -> str:
    return markup.escape(str(text))


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    shown = [name for name in rows[0] if any(row[name] for row in rows)]
    head = "".join(f"<th>{_e(name)}</th>" for name in shown)
    lines = (
        "".join(
            f'<td{" class=text" * (name == "failure")} title="{_e(row[name])}">{_e(row[name])}</td>' for name in shown
        )
        for row in rows
    )
    return f"<tr>{head}</tr>" + "".join(f"<tr>{line}</tr>" for line in lines)


def _over_time(points: Sequence[Point], best: Point, metric: str, is_max: bool) -> str:
    ordered = sorted(points, key=lambda point: point.number)
    places = _scaled([float(point.number) for point in ordered], _WIDTH)
    reached: list[float] = []
    for point in ordered:
        value = (max if is_max else min)([point.value, *reached[-1:]]) if point.is_complete else None
        reached.append(value if value is not None else (reached[-1] if reached else point.value))
    heights = _scaled([point.value for point in ordered] + reached, _HEIGHT)
    line = " ".join(f"{x:.1f},{_HEIGHT - y:.1f}" for x, y in zip(places, heights[len(ordered) :], strict=True))
    dots = _dots(ordered, places, heights, best)
    return _figure(f"{metric} by trial", f'<polyline points="{line}"/>{dots}')


def _of_parameter(name: str, points: Sequence[Point], best: Point, metric: str) -> str:
    """Returns the plot of the metric over a parameter. Values are sorted and evenly spaced, as a range may be log."""
    having = [point for point in points if name in point.texts]
    values = [point.texts[name] for point in having]
    try:
        order = sorted(set(values), key=float)
    except ValueError:
        order = sorted(set(values))
    places = _scaled([float(order.index(value)) for value in values], _WIDTH)
    heights = _scaled([point.value for point in having], _HEIGHT)
    caption = f"{metric} by {name}, in order from {order[0]} to {order[-1]}"
    return _figure(caption, _dots(having, places, heights, best))


def _dots(points: Sequence[Point], places: Sequence[float], heights: Sequence[float], best: Point) -> str:
    return "".join(
        f'<circle cx="{x:.1f}" cy="{_HEIGHT - y:.1f}" r="4" class="{_kind(point, best)}">'
        f"<title>trial {point.number}: {point.value:.6g}; {_e(_described(point))}</title></circle>"
        for point, x, y in zip(points, places, heights, strict=False)
    )


def _kind(point: Point, best: Point) -> str:
    return "best" if point is best else "complete" if point.is_complete else "stopped"


def _described(point: Point) -> str:
    return ", ".join(f"{name}={text}" for name, text in point.texts.items()) or "your settings"


def _scaled(values: Sequence[float], size: int) -> list[float]:
    low, high = min(values), max(values)
    return [_MARGIN + (value - low) / ((high - low) or 1.0) * (size - 2 * _MARGIN) for value in values]


def _figure(caption: str, content: str) -> str:
    box = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img">{content}</svg>'
    return f"<figure>{box}<figcaption>{_e(caption)}</figcaption></figure>"
