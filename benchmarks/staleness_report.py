"""The table and the picture of what `staleness` measured."""

import collections
import json
import statistics

_POINT = ("optimizer", "workers", "sync_steps", "merge", "seed", "learning_rate", "accumulator")
_COLORS = {2: "tab:blue", 4: "tab:orange", 8: "tab:red"}
_STYLES = {"sum": ":", "mean": "--", "adaptive": "-"}


def read(path):
    """-> list of dicts, of the JSON lines that are there."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def there(path):
    """-> set of the points that have a result, each as `staleness_run.Point` as a tuple."""
    return {tuple(result[name] for name in _POINT) for result in read(path)}


def table(results):
    """-> Markdown: the AUC at N = 1, and by how many thousandths it is higher at each other N.

    Differences are of runs with one seed, then averaged: a seed has the same data order and the same start at each N.
    """
    by_point, steps = _by_point(results), _sync_steps(results)
    later = [n for n in steps if n > 1]
    lines = [
        f"| optimizer | merge | workers | AUC, N = 1 | {' | '.join(f'N = {n}' for n in later)} |",
        "|" + "---|" * (4 + len(later)),
    ]
    for optimizer, merge, workers in _groups(results):
        first = by_point[optimizer, workers, 1, merge]
        cells = [_difference(by_point[optimizer, workers, n, merge], first) for n in later]
        merge = "" if workers == 1 else merge
        lines.append(f"| {optimizer} | {merge} | {workers} | {_mean(first)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(results, path):
    """Writes the picture: AUC against N, an optimizer a panel."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    by_point, steps = _by_point(results), _sync_steps(results)
    optimizers = list(dict.fromkeys(result["optimizer"] for result in results))
    figure, panels = pyplot.subplots(
        1, len(optimizers), figsize=(4 * len(optimizers), 4), squeeze=False, layout="constrained"
    )
    for panel, optimizer in zip(panels[0], optimizers, strict=True):
        for name, merge, workers in _groups(results):
            if name != optimizer:
                continue
            if workers == 1:
                alone = statistics.mean(by_point[optimizer, 1, 1, merge].values())
                panel.axhline(alone, color="black", linewidth=1, label="1 worker")
                panel.set_ylim(alone - 0.03, alone + 0.005)
                continue
            measured = [n for n in steps if by_point[optimizer, workers, n, merge]]
            values = [statistics.mean(by_point[optimizer, workers, n, merge].values()) for n in measured]
            style = dict(color=_COLORS.get(workers), linestyle=_STYLES.get(merge), marker=".")
            panel.plot(measured, values, label=f"{workers} workers, {merge}", **style)
        panel.set(title=optimizer, xscale="log", xlabel="steps between two syncs (N)")
        panel.set_xticks(steps, map(str, steps))
        panel.minorticks_off()
    panels[0][0].set_ylabel("AUC on the test split")
    handles = {text: line for panel in panels[0] for line, text in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=len(handles), fontsize="small")
    figure.savefig(path, dpi=110)


def _by_point(results):
    """-> by (optimizer, workers, sync_steps, merge), dict of seed -> AUC."""
    by_point = collections.defaultdict(dict)
    for result in results:
        point = tuple(result[name] for name in ("optimizer", "workers", "sync_steps", "merge"))
        by_point[point][result["seed"]] = result["auc"]
    return by_point


def _groups(results):
    return list(dict.fromkeys((r["optimizer"], r["merge"], r["workers"]) for r in sorted(results, key=_order)))


def _order(result):
    return result["optimizer"], result["workers"] > 1, result["merge"], result["workers"]


def _sync_steps(results):
    return sorted({result["sync_steps"] for result in results})


def _mean(by_seed):
    if not by_seed:
        return ""
    spread = f" ± {statistics.stdev(by_seed.values()):.4f}" if len(by_seed) > 1 else ""
    return f"{statistics.mean(by_seed.values()):.4f}{spread}"


def _difference(by_seed, first):
    """-> as `-1.2 ± 0.3`, thousandths."""
    both = [1000 * (by_seed[seed] - first[seed]) for seed in by_seed if seed in first]
    if not both:
        return ""
    spread = f" ± {statistics.stdev(both):.1f}" if len(both) > 1 else ""
    return f"{statistics.mean(both):+.1f}{spread}"
