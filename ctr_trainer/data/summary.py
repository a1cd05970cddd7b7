"""The summary that a conversion prints at its end."""

from ctr_trainer.features.buckets import BOUNDARIES


def format_summary(summary):
    """-> the summary of `convert` as small tables: one line per part, then one line per feature of the first part."""
    lines = [f"{summary['output']}: {summary['seconds']:.1f} s, {summary['bad_rows']} bad rows left out"]
    part, info = next(iter(summary["parts"].items()))
    several = [f"{name} mean" for name in info.label_means] if len(info.label_means) > 1 else ["label mean"]
    several = several if info.labelled else []
    widths = [max(12, len(name) + 2) for name in several]
    lines.append(f"{'part':<8}{'rows':>14}" + "".join(f"{n:>{w}}" for n, w in zip(several, widths, strict=True)))
    lines[-1] += f"{'files':>7}"
    for name, each in summary["parts"].items():
        means = (each.label_means.values() or [each.label_mean]) if each.labelled else []
        means = zip(means, widths, strict=True)
        lines.append(f"{name:<8}{each.rows:>14,}" + "".join(f"{mean:>{w}.4f}" for mean, w in means))
        lines[-1] += f"{len(each.files):>7}"
    width = max(len(name) for name in ("feature", *info.distinct, *info.statistics)) + 2
    if info.distinct:
        lines.append(f"{'feature':<{width}}{'distinct keys (' + part + ')':>24}")
        lines += [f"{name:<{width}}{count:>24,}" for name, count in info.distinct.items()]
        lines.append(f"{'total':<{width}}{sum(info.distinct.values()):>24,}")
    if summary["lists"]:
        width = max(width, 2 + max(map(len, summary["lists"])))
        heads = ("mean length", "largest", "empty", "cut")
        lines.append(f"{'list':<{width}}" + "".join(f"{head:>14}" for head in heads))
        for name, s in summary["lists"].items():
            lines.append(f"{name:<{width}}{s['mean']:>14.2f}{s['largest']:>14,}{s['empty']:>14.1%}{s['cut']:>14.1%}")
    moments = {name: fitted for name, fitted in info.statistics.items() if "mean" in fitted}
    if moments:
        lines.append(f"{'feature':<{width}}" + "".join(f"{h:>14}" for h in ("present", "mean", "std", "min", "max")))
        for name, s in moments.items():
            share = s["count"] / max(info.rows, 1)
            figures = "".join(f"{s[k]:>14.5g}" for k in ("mean", "std", "min", "max"))
            lines.append(f"{name:<{width}}{share:>14.1%}{figures}")
    for name, fitted in info.statistics.items():
        if BOUNDARIES in fitted:
            shown = ", ".join(f"{boundary:.5g}" for boundary in fitted[BOUNDARIES])
            lines.append(f"{name:<{width}}{len(fitted[BOUNDARIES]) + 1} buckets, cut at {shown}")
    lines += [f"{name}: {value}" for name, value in info.extra.items()]
    return "\n".join(lines)
