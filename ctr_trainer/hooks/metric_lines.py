"""Shows the lines of `MetricsHook` in the log."""

import logging

from ctr_trainer.metrics.line_sums import Line
from ctr_trainer.settings.run_config import GRAPH_NAMES, PLAIN_NAMES

_log = logging.getLogger(__name__)
_IN_FOUR_DIGITS = ("auc", "accuracy")


class MetricLines:
    """Logs `step 2800, auc = 0.6706 (63.9 it/sec; 65430.9 examples/sec)`, the other figures alike, then the rate.

    The last of these lines is `current lr: 0.050000`, the learning rate of the dense variables at that step. If the
    figures are those of several workers, the line has this worker's rates and then the examples per second of all
    workers, as in `(63.9 it/sec; 65430.9 examples/sec; 124878.3 of 2 workers)`. For a model with logits the cross
    entropy is logged, for other models the loss.

    Args:
      names: one of `LOG_NAMES`. `graph` gives the means the names of their tensors, as `xentropy_mean:0`, and leaves
        the figures of all workers out: each line has the form that programs of TensorFlow 1 parse.
    """

    def __init__(self, names: str = PLAIN_NAMES) -> None:
        self._as_in_graph = names == GRAPH_NAMES

    def take(self, line: Line) -> None:
        """Logs a `Line`, with one figure in each line of the log."""
        values = {name: value for name, value in line.values.items() if name != "loss"} or line.values
        pace, suffix = self._pace(line)
        for name, value in values.items():
            of_examples = name.split("/")[0] in _IN_FOUR_DIGITS
            shown = name if of_examples or not self._as_in_graph else f"{name}:0"
            _log.info("step %d, %s = %.*f (%s)%s", line.step, shown, 4 if of_examples else 8, value, pace, suffix)
        if line.own.lr is not None:
            _log.info("current lr: %f", line.own.lr)

    def _pace(self, line: Line) -> tuple[str, str]:
        """Returns what stands in the parentheses of a line, and what stands behind them."""
        pace, several = f"{line.own.steps_per_sec:.1f} it/sec", line.workers > 1
        if line.examples_per_sec is not None:
            pace += f"; {line.own.examples_per_sec:.1f} examples/sec"
            if several and not self._as_in_graph:
                return f"{pace}; {line.examples_per_sec:.1f} of {line.of}", ""
        return pace, "" if self._as_in_graph or not line.of else f" of {line.of}"
