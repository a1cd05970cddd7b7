"""Compares runs as pictures."""

from ctr_trainer.files import outputs
from ctr_trainer.report.comparison import metric_names

# (name of the figure, its name in the training's log, its name in the evaluations, label of the axis)
_FIGURES = (
    ("auc", "auc", "auc", "AUC"),
    ("logloss", "xentropy_mean", "logloss", "log loss"),
    ("examples_per_sec", "examples_per_sec", None, "examples/s, all workers"),
)


def write_curves(runs, directory):
    """Writes one PNG per figure, over the steps: `auc.png`, `logloss.png`, `examples_per_sec.png`.

    With several labels the names are `auc-click.png` and so on. The training's log is a thin line; the evaluations are
    points on a thick line.

    Args:
      runs: list of `Run`.
      directory: directory of the pictures.

    Returns:
      the paths of the pictures. A figure that no run has gets no picture.

    Raises:
      UserError: a file with the name of a picture exists, and is no earlier report.
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
    # A `Figure` made directly needs no display and none of pyplot's state.
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
