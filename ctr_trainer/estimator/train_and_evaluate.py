"""Training with evaluations on the way, in tf.estimator's names."""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ctr_trainer.estimator.results import TrainResult
from ctr_trainer.metrics.evaluation_metrics import DIRECTIONS
from ctr_trainer.settings.evaluation_config import EvaluationConfig, MetricsConfig

_EVERY_N_STEPS = 1000
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TrainSpec:
    """What to train on.

    Attributes:
      input_fn, max_steps, hooks, saving_listeners: as for `Estimator.train`.
    """

    input_fn: Callable
    max_steps: int | None = None
    hooks: Sequence[Any] | None = ()
    saving_listeners: Sequence[Any] | None = ()


@dataclasses.dataclass(frozen=True)
class EvalSpec(EvaluationConfig):
    """What to evaluate on while training, how often, and what comes of it.

    All ranks evaluate the model as it is, after each step whose number divides by `every_n_steps`, or with which an
    `every_n_epochs`-th epoch of the training data ends, and after the last one. If `throttle_secs` or
    `start_delay_secs` is given in place of these, they evaluate as tf.estimator does: with each checkpoint, but not
    earlier than these times by rank 0's clock.

    Attributes:
      input_fn: f() -> `BatchReader` or `tf.data.Dataset`, this rank's share; read from its beginning each time.
      name: of the summaries' directory, `MODEL_DIR/eval` or `MODEL_DIR/eval_<name>`.
      hooks: more session hooks of an evaluation.
      exporters: list of `LatestExporter`, `BestExporter`, `FinalExporter` or others that are an `exporters.Exporter`.
      start_delay_secs: seconds from the training's begin to the first evaluation.
      throttle_secs: least seconds between two evaluations.
      metrics: `MetricsConfig`.
      every_n_steps: global steps between two evaluations; 0 for one at the end only; 1000 if neither this nor
        `every_n_epochs`, `throttle_secs` or `start_delay_secs` is given.
      every_n_epochs: epochs between two evaluations, counted from the very first one.
      steps: batches of each rank; 0 or None for all.
      best_metric: by which the best model's checkpoint is kept in `MODEL_DIR/best`; "" or None keeps none.
      best_direction: `max` or `min`; "" or None for a metric of this package, which knows its own.
      early_stopping_patience: training ends after so many evaluations without an improvement of `best_metric`; 0 never.
      early_stopping_min_delta: by how much it must be better to count as one.

    Raises:
      UserError: both periods, early stopping without `best_metric` or a period, or no direction is known.
    """

    input_fn: Callable
    name: str | None = None
    hooks: Sequence[Any] | None = ()
    exporters: Iterable[Any] | None = ()
    start_delay_secs: float | None = None
    throttle_secs: float | None = None
    metrics: MetricsConfig = MetricsConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        exporters = self.exporters or ()
        object.__setattr__(self, "exporters", (exporters,) if hasattr(exporters, "export") else tuple(exporters))
        object.__setattr__(self, "hooks", tuple(self.hooks or ()))
        is_timed = (self.throttle_secs, self.start_delay_secs) != (None, None)
        if is_timed and self.evaluates:
            _log.warning("EvalSpec(throttle_secs, start_delay_secs) are not used: evaluations are counted in steps")
        if self.every_n_steps is None and not self.every_n_epochs and not is_timed:
            object.__setattr__(self, "every_n_steps", _EVERY_N_STEPS)
        if self.early_stopping_patience and not self.evaluates and not is_timed:
            raise self.refused(
                "{early_stopping_patience} counts evaluations while training: give {every_n_steps:name} or "
                "{every_n_epochs:name}"
            )
        if self.early_stopping_patience and not self.best_metric:
            raise self.refused("{early_stopping_patience} needs a {best_metric:name}, as auc, to wait for")
        if self.best_metric and self.direction is None:
            known = ", ".join(f"{name} {direction}" for name, direction in DIRECTIONS.items())
            raise self.refused(
                "which values of {best_metric} are better is not known: give {best_direction:name}, max or min "
                "(known: {known})",
                known=known,
            )

    @property
    def direction(self):
        """`max` or `min`, given or known of the metric; None where it is neither."""
        return self.best_direction or DIRECTIONS.get((self.best_metric or "").split("/")[0])


def train_and_evaluate(
    estimator: Any, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[dict[str, Any] | None, TrainResult | None]:
    """Trains, evaluating on the way without leaving the training session. A collective.

    Args:
      estimator: `Estimator`.
      train_spec, eval_spec: `TrainSpec` and `EvalSpec`.

    Returns:
      (metrics, result): the metrics of the last evaluation with their `global_step`, or None where none was made, as
      tf.estimator's; and the `TrainResult`.
    """
    result = estimator.train(
        train_spec.input_fn,
        train_spec.hooks,
        max_steps=train_spec.max_steps,
        saving_listeners=train_spec.saving_listeners,
        evaluation=eval_spec,
    )
    return result and result.evaluation, result
