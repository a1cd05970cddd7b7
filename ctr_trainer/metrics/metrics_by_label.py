"""The click metrics of each label."""

from ctr_trainer.metrics.click_metrics import ClickMetrics


class MetricsByLabel:
    """`ClickMetrics` of one label, or of each of several; theirs are named `auc/<label>` and so on.

    Args:
      tensors: dict of `logits`, `labels`, `weights`; or, of several labels, by label name such a dict.

    Attributes:
      by_label: ClickMetrics by what stands behind the metrics' names: "" for the one label, "/<label>" else.
    """

    def __init__(self, tensors):
        names = [f"/{name}" for name in tensors] if _is_nested(tensors) else [""]
        self.by_label = {name: ClickMetrics() for name in names}

    def update(self, values):
        """Adds a batch: the tensors' values."""
        for name, metrics in self.by_label.items():
            of_label = values[name[1:]] if name else values
            metrics.update(of_label["logits"], of_label["labels"], of_label["weights"])

    def results(self):
        """-> dict of name -> float."""
        return {
            f"{metric}{name}": value
            for name, metrics in self.by_label.items()
            for metric, value in metrics.results().items()
        }

    def reset(self, is_auc):
        """Starts the AUCs anew, or all else."""
        for metrics in self.by_label.values():
            for name, metric in metrics.parts.items():
                if (name == "auc") == is_auc:
                    metric.reset()

    def merge(self, all_sum):
        """As ClickMetrics'. A collective."""
        for name, metrics in self.by_label.items():
            metrics.merge(lambda state, metric, name=name: all_sum(state, metric + name))


def weights_of(values):
    """-> float32[B], the examples' weights among a batch's values: all labels have the same."""
    return next(iter(values.values()))["weights"] if _is_nested(values) else values["weights"]


def _is_nested(tensors):
    return isinstance(next(iter(tensors.values()), None), dict)
