"""Training with evaluations, with the names of `tf.estimator`: the arguments and the results."""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ctr_trainer.models.estimator_spec import session_hooks
from ctr_trainer.models.metrics.evaluation_metrics import DIRECTIONS
from ctr_trainer.settings.training_configs import EvaluationConfig
from ctr_trainer.system.messages.errors import NamedArguments, UserError

_AUC = "training_auc"
_OPTIONAL = ("phases", "load", "evaluation_seconds", "stopped_early", "warm_start", "publication")
_EVERY_N_STEPS = 1000
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TrainResult(Mapping[str, Any]):
    """The result of a call of `Estimator.train`, with the time of each phase.

    It is also a read-only mapping with the keys of its JSON form, such as `result["global_step"]`.

    Attributes:
      workers: number of workers.
      steps: optimizer steps of this call.
      global_step: the global step after the last one.
      examples: examples of all workers in this call.
      seconds: training time without evaluations.
      examples_per_sec: examples per second of all workers.
      input_wait_seconds: seconds for which this rank waited for batches.
      phases, load: the figures of `ProfileHook` and `MachineHook` of this rank; None without `RunConfig.profile_steps`.
      training_auc: dict of name -> AUC of the training examples of all ranks. The name is `auc`, or `auc/<label>` with
        several labels.
      phase_seconds: dict of phase -> `mean` and `max` over the ranks. `exchange` is the part of `session` when only the
        exchange of gradients was running, estimated from a few steps. `syncing` is the time when syncs of the rows were
        running, most of it concurrently with steps.
      slowest_phase, slowest_phase_share: the phase with the largest mean, and its share of the training time.
      cache_hit_rate: share of the looked-up keys whose rows the worker already had; None without a service.
      bytes_per_sync: bytes that one copy of the rows sends and receives from one sync to the next, including misses;
        None without a service.
      copies_of: the owner of each copy of the rows, `host` (for all workers of a host) or `worker`; None without a
        service.
      service_silent_seconds: seconds for which the embedding service did not answer, mean over the ranks.
      resident_bytes: peak memory of the ranks: `mean`, `max`, and a list of all as `ranks`.
      service_resident_bytes: memory of all shards at the end; None without a service.
      gpu: `busy` (a share of the time) and `bytes`, each with `mean` and `max` over the ranks; None without GPUs that
        NVML reports on.
      advice: the flag that is most likely to make the run faster: `flag`, `share` and `why`; or None.
      evaluation: metrics of the last evaluation; None if there was none.
      evaluation_seconds: seconds of all evaluations; None without an `EvalSpec`.
      stopped_early: whether evaluations without an improvement ended the training; None without an `EvalSpec`.
      warm_start: on rank 0 after a warm start, the tables and variables that were taken and left out; else None.
      publication: on rank 0 with `RunConfig.publish`, the figures of `Publisher.results`; else None.
    """

    workers: int
    steps: int
    global_step: int
    examples: int
    seconds: float
    examples_per_sec: float
    input_wait_seconds: float
    phases: dict[str, Any] | None = None
    load: dict[str, Any] | None = None
    training_auc: dict[str, float]
    phase_seconds: dict[str, dict[str, float]]
    slowest_phase: str
    slowest_phase_share: float
    cache_hit_rate: float | None
    bytes_per_sync: int | None
    copies_of: str | None
    service_silent_seconds: float
    resident_bytes: dict[str, Any]
    service_resident_bytes: int | None
    gpu: dict[str, dict[str, float]] | None
    advice: dict[str, Any] | None
    evaluation: dict[str, Any] | None = None
    evaluation_seconds: float | None = None
    stopped_early: bool | None = None
    warm_start: dict[str, Any] | None = None
    publication: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the dict of `train_summary.json`, which has each AUC under its own name and omits absent figures."""
        values: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == _AUC:
                values |= value
            elif field.name == "evaluation":
                if self.evaluation_seconds is not None:
                    values["evaluation"] = value
            elif value is not None or field.name not in _OPTIONAL:
                values[field.name] = value
        return values

    def __getitem__(self, name: str) -> Any:
        return self.to_json()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_json())

    def __len__(self) -> int:
        return len(self.to_json())


class EvaluationResult(dict[str, Any]):
    """The metrics of an evaluation by name, such as `metrics["auc"]`. Common metrics are also attributes.

    A click model also has `examples`, the metrics of `EvaluationMetrics` and `reliability`, the rows of
    `metrics.auc.deciles`. With several labels the names end with the label, such as `auc/click`.
    """

    @property
    def global_step(self) -> int:
        """The global step of the checkpoint."""
        return self["global_step"]

    @property
    def loss(self) -> float:
        """The mean of the loss over all examples."""
        return self["loss"]

    @property
    def examples(self) -> int:
        """The number of evaluated examples."""
        return self["examples"]

    @property
    def auc(self) -> float | None:
        """The AUC; None for a model without click metrics, or with several labels."""
        return self.get("auc")


@dataclasses.dataclass(frozen=True)
class TrainSpec(NamedArguments):
    """The input, the length and the hooks of a training.

    Attributes:
      input_fn, max_steps, hooks, saving_listeners: see `Estimator.train`.
    """

    input_fn: Callable[..., Any]
    max_steps: int | None = None
    hooks: Sequence[Any] | None = ()
    saving_listeners: Sequence[Any] | None = ()

    def __post_init__(self) -> None:
        refuse_unless_positive(max_steps=self.max_steps)


@dataclasses.dataclass(frozen=True)
class EvalSpec(EvaluationConfig):
    """The input and the period of evaluations during training, and the actions that depend on their metrics.

    All ranks evaluate after each step whose number is a multiple of `every_n_steps`, or at the end of every
    `every_n_epochs`-th epoch of the training data, and after the last step. If `throttle_secs` or `start_delay_secs` is
    given instead, they evaluate as tf.estimator does: after each checkpoint, but not earlier than these times by the
    clock of rank 0.

    Attributes:
      input_fn: f() -> `BatchReader` or `tf.data.Dataset`, this rank's share; each evaluation reads it from the start.
      name: the summaries are in `MODEL_DIR/eval_<name>`; None for `MODEL_DIR/eval`.
      hooks: additional session hooks of an evaluation.
      exporters: list of `LatestExporter`, `BestExporter`, `FinalExporter` or other `exporters.Exporter`s.
      start_delay_secs: minimum seconds from the start of the training to the first evaluation.
      throttle_secs: minimum seconds between two evaluations.
      every_n_steps: global steps between two evaluations; 0 for one at the end only; 1000 if neither this nor
        `every_n_epochs`, `throttle_secs` or `start_delay_secs` is given.
      every_n_epochs: epochs between two evaluations, counted from the first epoch of the model.
      steps: batches of each rank; 0 or None for all.
      best_metric: metric by which the best checkpoint is kept in `MODEL_DIR/best`; "" or None keeps none.
      best_direction: `max` or `min`; "" or None for a metric of this package, whose direction is known.
      early_stopping_patience: number of evaluations without an improvement of `best_metric` after which the training
        ends; 0 for no early stopping.
      early_stopping_min_delta: an improvement is a change of the metric by more than this.
      group_by: id column or single-valued feature that adds `gauc`; "" for none. It takes memory, see
        `GroupedExamples`.

    Raises:
      UserError: both periods are given, early stopping lacks `best_metric` or a period, or the metric's direction is
        not known.
    """

    input_fn: Callable[..., Any]
    name: str | None = None
    hooks: Sequence[Any] | None = ()
    exporters: Iterable[Any] | None = ()
    start_delay_secs: float | None = None
    throttle_secs: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        exporters = self.exporters or ()
        object.__setattr__(self, "exporters", (exporters,) if hasattr(exporters, "export") else tuple(exporters))
        object.__setattr__(self, "hooks", session_hooks(self.hooks))
        for name in ("throttle_secs", "start_delay_secs"):
            if (getattr(self, name) or 0) < 0:
                raise UserError(f"EvalSpec({name}={getattr(self, name)}): expected 0 or more seconds")
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
            raise self.refused("{early_stopping_patience} needs a {best_metric:name} to wait for, such as auc")
        if self.best_metric and not self.direction:
            known = ", ".join(f"{name} {direction}" for name, direction in DIRECTIONS.items())
            raise self.refused(
                "which values of {best_metric} are better is not known: give {best_direction:name}, max or min "
                "(known: {known})",
                known=known,
            )

    @property
    def direction(self) -> str:
        """`max` or `min`, whichever is better for the metric; "" if the direction is not known."""
        return self.best_direction or DIRECTIONS.get((self.best_metric or "").split("/")[0], "")


def refuse_unless_positive(**numbers: float | None) -> None:
    """Raises UserError if one of the arguments is neither None nor above 0."""
    for name, number in numbers.items():
        if number is not None and not number > 0:
            raise UserError(f"{name}={number}: expected a number above 0, or None for no limit")


def train_and_evaluate(
    estimator: Any, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[dict[str, Any] | None, TrainResult | None]:
    """Trains and evaluates in one training session. A collective.

    Args:
      estimator: the `Estimator`.
      train_spec, eval_spec: `TrainSpec` and `EvalSpec`.

    Returns:
      (metrics, result): the metrics of the last evaluation with their `global_step`, or None if there was none; and
      the `TrainResult`, or None if there was nothing to do.
    """
    estimator.train(
        train_spec.input_fn,
        train_spec.hooks,
        max_steps=train_spec.max_steps,
        saving_listeners=train_spec.saving_listeners,
        evaluation=eval_spec,
    )
    result = estimator.last_training
    return result and result.evaluation, result
