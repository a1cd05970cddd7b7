"""Shows the lines of `MetricsHook` in the log."""

import logging

_log = logging.getLogger(__name__)
_IN_FOUR_DIGITS = ("auc", "accuracy")


class MetricLines:
    """Logs `step 2800, auc = 0.6706 (63.9 it/sec; 65430.9 examples/sec) of 2 workers`, and alike the other figures.

    Of a model with logits its cross entropy is logged, of others the loss.
    """

    def take(self, line):
        """Logs a `Line`, a figure a line."""
        values = {name: value for name, value in line.values.items() if name != "loss"} or line.values
        pace = f"{line.steps_per_sec:.1f} it/sec"
        if line.examples_per_sec is not None:
            pace += f"; {line.examples_per_sec:.1f} examples/sec"
        of = line.of and f" of {line.of}"
        for name, value in values.items():
            digits = 4 if name.split("/")[0] in _IN_FOUR_DIGITS else 8
            _log.info("step %d, %s = %.*f (%s)%s", line.step, name, digits, value, pace, of)
