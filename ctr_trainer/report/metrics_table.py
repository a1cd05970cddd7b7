"""The metrics of one evaluation as text."""


def format_metrics(results):
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


def format_value(value):
    """-> text: a figure with five digits after the point, a count in full, a text as it is, `-` if not defined."""
    if value is None or isinstance(value, str):
        return value or "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.5f}"
