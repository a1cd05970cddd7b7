"""Runs side by side as pictures."""

from ctr_trainer.files import outputs
from ctr_trainer.report.comparison import metric_names

# (the figure's name, what the training's log calls it, what the evaluations call it, the axis)
_FIGURES = (
    ("auc", "auc", "auc", "AUC"),
    ("logloss", "xentropy_mean", "logloss", "log loss"),
    ("examples_per_sec", "examples_per_sec", None, "examples/s, all workers"),
)


def write_curves(runs, directory):
    """Writes a PNG a figure, against the step: `auc.png`, `logloss.png`, `examples_per_sec.png`; with several labels
    `auc-click.png` and so on. The training's log is a thin line, the evaluations are points on a thick one.

    Returns:
      the paths written; none of a figure that no run has.

    Raises:
      UserError: a file of such a name is there, and is no earlier report.
    """
    figures = {}
    for name, trained, evaluated, axis in _FIGURES:
        names = metric_names(runs, trained) + (metric_names(runs, evaluated) if evaluated else [])
        for label in dict.fromkeys(found.partition("/")[2] for found in names):
            suffix = f"/{label}" if label else ""
            curves = (trained + suffix, evaluated and evaluated + suffix, f"{axis} {label}".strip())
            figures[f"{name}{suffix.replace('/', '-')}.png"] = curves
    paths = outputs.claim(directory, list(figures)) if figures else {}
    for name, curves in figures.items():
        _draw(runs, paths[name], *curves)
    return list(paths.values())


def _draw(runs, path, trained, evaluated, axis):
    # Figures of their own need no display and no state of pyplot's.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for number, run in enumerate(runs):
        color = f"C{number % 10}"
        training = run.curve(trained, evaluated=False)
        evaluations = run.curve(evaluated, evaluated=True) if evaluated else []
        if training:
            label = run.name if not evaluations else f"{run.name}, training"
            axes.plot(*zip(*training, strict=True), color=color, linewidth=0.8, alpha=0.7, label=label)
        if evaluations:
            points = dict(marker="o", markersize=4, linewidth=2)
            axes.plot(*zip(*evaluations, strict=True), color=color, label=f"{run.name}, evaluation", **points)
    axes.set_xlabel("step")
    axes.set_ylabel(axis)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
