"""What `Estimator.train` and `Estimator.evaluate` return."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

_AUC = "training_auc"
_OPTIONAL = ("phases", "load", "evaluation_seconds", "stopped_early", "warm_start", "publication")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TrainResult(Mapping[str, Any]):
    """What a call of `Estimator.train` did, and where its time went.

    It is also a read-only mapping with the keys of its JSON form, such as `result["global_step"]`.

    Attributes:
      workers: number of workers.
      steps: optimizer steps of this call.
      global_step: the global step after the last one.
      examples: examples of all workers in this call.
      seconds: training time without evaluations.
      examples_per_sec: of all workers.
      input_wait_seconds: seconds in which this rank waited for batches.
      phases, load: with `RunConfig.phase_steps`, the figures of `StepTraceHook` and `LoadHook` of this rank; else None.
      training_auc: the AUC of the training examples of all ranks, by name: `auc`, or `auc/<label>` of several labels.
      phase_seconds: by phase, the `mean` and the `max` over the ranks. `exchange` is the part of `session` in which
        only the exchange of gradients was at work, estimated from a few steps. `syncing` is the time in which syncs of
        the rows were under way, most of it while steps ran.
      slowest_phase, slowest_phase_share: the phase with the largest mean, and its share of the training time.
      cache_hit_rate: share of the looked up keys that a worker had; None without a service, as for the next two.
      bytes_per_sync: bytes that one copy of the rows sends and receives from one sync to the next, misses included.
      copies_of: who has such a copy: `host` (all workers of a host together) or `worker`.
      row_lock_wait_percent, row_lock_held_percent: share of the training time in which a worker's threads waited for
        the lock of the rows and held it, mean of the ranks; None without a lock.
      service_silent_seconds: seconds in which the embedding service did not answer.
      resident_bytes: `mean` and `max` of the most memory that each rank held, and all of them as `ranks`.
      service_resident_bytes: memory of all shards at the end; None without a service.
      gpu: `busy` (a share of the time) and `bytes`, each with `mean` and `max` over the ranks; None without GPUs that
        NVML reports on.
      advice: which flag is most likely to make the run faster: `flag`, `share` and `why`; or None.
      evaluation: metrics of the last evaluation; None if there was none.
      evaluation_seconds: seconds of all evaluations; None without an `EvalSpec`, as `stopped_early`.
      stopped_early: whether evaluations without an improvement ended the training.
      quality_advice: which flags may make the model better, each with `flag` and `why`; see `quality`.
      warm_start: on rank 0 after a warm start, what was taken and what was left; else None.
      publication: on rank 0 with `RunConfig.publish`, see `Publisher.results`; else None.
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
    row_lock_wait_percent: float | None
    row_lock_held_percent: float | None
    service_silent_seconds: float
    resident_bytes: dict[str, Any]
    service_resident_bytes: int | None
    gpu: dict[str, dict[str, float]] | None
    advice: dict[str, Any] | None
    evaluation: dict[str, Any] | None = None
    evaluation_seconds: float | None = None
    stopped_early: bool | None = None
    quality_advice: list[dict[str, str]]
    warm_start: dict[str, Any] | None = None
    publication: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the dict of `train_summary.json`: the AUC by its names, and no key of what the job does not have."""
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
    """The metrics of an evaluation by name, as in `metrics["auc"]`, with those that every model has as attributes.

    A click model also has `examples`, the metrics of `EvaluationMetrics` and `reliability`, the rows of
    `Reliability.table`. With several labels the names end with the label, such as `auc/click`.
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
    def examples(self) -> int | None:
        """How many examples were evaluated; None if the model has no click metrics."""
        return self.get("examples")

    @property
    def auc(self) -> float | None:
        """The AUC; None for a model without click metrics, or with several labels."""
        return self.get("auc")
