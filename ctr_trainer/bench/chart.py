"""The figures of several rounds as pictures."""

import os

_MARKERS = "osD^v"
_MOST_TICKS = 12


def draw_bars(path, title, unit, bars):
    """Writes a PNG of bars, each with its median, and its range as a line.

    Args:
      path: of the PNG.
      title, unit: of the picture and of its axis.
      bars: dict of name -> `figures.Figure`.
    """
    figure, axes = _figure(title)
    names, values = list(bars), [bar.median for bar in bars.values()]
    ends = [sum(pair, []) for pair in zip(*(_ends(bar) for bar in bars.values()), strict=True)]
    axes.barh(names, values, xerr=ends, color="C0", ecolor="0.3", capsize=3)
    axes.invert_yaxis()  # The first one on top, as in the table.
    axes.set_xlabel(unit)
    axes.grid(axis="x", alpha=0.3)
    _save(figure, path)


def draw_lines(path, title, x_label, y_label, lines, logarithmic=False):
    """Writes a PNG of lines.

    Args:
      path: of the PNG.
      lines: dict of name -> list of (x, y), y a number or a `figures.Figure`, whose range is drawn too.
      logarithmic: both axes.
    """
    figure, axes = _figure(title)
    for number, (name, points) in enumerate(lines.items()):
        color = f"C{number % 10}"
        xs = [x for x, _ in points]
        axes.plot(xs, [getattr(y, "median", y) for _, y in points], marker="o", markersize=4, color=color, label=name)
        ranges = [(min(y.values), max(y.values)) if hasattr(y, "values") else (y, y) for _, y in points]
        axes.fill_between(xs, [low for low, _ in ranges], [high for _, high in ranges], color=color, alpha=0.15)
    if logarithmic:
        axes.set_xscale("log")
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
        ticks = sorted({x for points in lines.values() for x, _ in points})
        if len(ticks) <= _MOST_TICKS:
            axes.set_xticks(ticks)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    axes.legend()
    _save(figure, path)


def draw_points(path, title, x_label, y_label, points):
    """Writes a PNG of points with their ranges: of two figures of each setting, one against the other.

    Args:
      path: of the PNG.
      points: dict of name -> (`figures.Figure`, `figures.Figure`).
    """
    figure, axes = _figure(title)
    for number, (name, (x, y)) in enumerate(points.items()):
        marker = _MARKERS[number // 10 % len(_MARKERS)]  # Ten colours, then the same ones with another marker.
        ranges = dict(xerr=_ends(x), yerr=_ends(y), elinewidth=0.8)
        axes.errorbar([x.median], [y.median], color=f"C{number % 10}", fmt=marker, label=name, **ranges)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="small")
    _save(figure, path)


def draw_stacks(path, title, unit, stacks):
    """Writes a PNG of one bar a name, made of parts: what a step's time goes to.

    Args:
      path: of the PNG.
      stacks: dict of name -> dict of part -> number; a part has the same colour in all.
    """
    figure, axes = _figure(title)
    names = list(stacks)
    left = [0.0] * len(names)
    for number, part in enumerate(dict.fromkeys(part for parts in stacks.values() for part in parts)):
        values = [stacks[name].get(part, 0.0) for name in names]
        hatch = "//" if number >= 10 else None  # Ten colours, then the same ones hatched.
        axes.barh(names, values, left=left, color=f"C{number % 10}", hatch=hatch, label=part)
        left = [start + value for start, value in zip(left, values, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    figure.legend(loc="outside lower center", ncols=4, fontsize="small")
    _save(figure, path)


def _ends(value):
    """-> [[how far the range reaches below the median], [above it]] of a `figures.Figure`, as matplotlib wants it."""
    return [[value.median - min(value.values)], [max(value.values) - value.median]]


def _figure(title):
    # Figures of their own need no display and no state of pyplot's.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title)
    return figure, axes


def _save(figure, path):
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    figure.savefig(path, dpi=120)
