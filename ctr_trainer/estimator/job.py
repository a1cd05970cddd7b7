"""What a training is given: the model, its input, and the point from which it starts."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

from ctr_trainer.checkpoint.checkpoint import Checkpoint
from ctr_trainer.checkpoint.model_record import ModelRecord
from ctr_trainer.embedding.service.local_service import LocalServices
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.system.files.paths import PathLease
from ctr_trainer.system.files.staging import Staging


@dataclasses.dataclass(frozen=True)
class TrainingJob:
    """The model to train, its input, and the point from which the training starts.

    Attributes:
      record: compared with the record in `checkpoint`, and written to each new checkpoint.
      checkpoint: the `Checkpoint` to resume from; None for a training that starts from step 0.
      newer_checkpoints: prefix of the names to which checkpoints after `checkpoint`, no longer used, are renamed.
      last_step: the global step to stop at; None to stop at the end of the input.
      warm_start: the model to start from if there is no checkpoint, see `warm_start_of`.
      stops_early: whether evaluations may end it before `last_step` and the end of the input.
      staging: the local copy of the model directory.
      lock: the lock of the model directory, on rank 0; None on other ranks.
    """

    model_fn: Callable[..., EstimatorSpec]
    params: Any
    config: RunConfig
    model_dir: str
    input_fn: Callable[..., Any]
    record: ModelRecord
    staging: Staging
    lock: PathLease | None
    checkpoint: Checkpoint | None = None
    newer_checkpoints: Literal["refused", "set-aside"] = "refused"
    last_step: int | None = None
    stops_early: bool = False
    warm_start: Any = None
    services: LocalServices | None = None

    @property
    def start(self) -> int:
        """The global step at which the training starts."""
        return self.checkpoint.step if self.checkpoint else 0
