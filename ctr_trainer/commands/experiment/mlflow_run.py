"""A run of MLflow that shows a training: its settings, its metrics and the page of the model."""

import contextlib
import functools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ctr_trainer.commands.reports.comparison import format_metrics
from ctr_trainer.commands.reports.training_run import EVALUATIONS_FILE, FLAGS_FILE, SUMMARY_FILE
from ctr_trainer.estimator.hooks.metrics_hook import LineTaker
from ctr_trainer.estimator.train_and_evaluate import TrainResult
from ctr_trainer.models.metrics.click_metrics import Line
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.messages.errors import StoppedInOrder, UserError
from ctr_trainer.system.processes.child import default_environment

_FILE, _SENT = "mlflow.json", (FLAGS_FILE, "features.json", EVALUATIONS_FILE, SUMMARY_FILE)
# A step waits for the answer; MLflow itself would try for minutes.
_PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
_log = logging.getLogger(__name__)


class MlflowRun(LineTaker):
    """Sends a training on rank 0 to MLFLOW_TRACKING_URI. What the server does not take is sent with the next line.

    A training that resumes continues its run, whose ID is in MODEL_DIR/mlflow.json. As a context, it ends the run.

    Raises:
      UserError: the package is missing, or the server does not start a run.
    """

    def __init__(self, model_dir: str, settings: Mapping[str, Any]) -> None:
        try:
            import mlflow
            from mlflow import entities
        except ImportError as missing:
            raise UserError("track=mlflow needs the package mlflow: pip install 'ctr_trainer[mlflow]'") from missing
        self._mlflow, self._metric, self._pending = mlflow, entities.Metric, list[Any]()
        self._directory, file = path_of(model_dir), path_of(model_dir) / _FILE
        known = file.read_json("remove it to begin a new run")["run_id"] if file.exists() else None
        with contextlib.ExitStack() as stack:
            stack.enter_context(default_environment(_PATIENCE))
            run: Any = None
            try:
                self._client: Any = mlflow.MlflowClient()
                run = mlflow.start_run(run_id=known, run_name=None if known else self._directory.name)
                self._id = run.info.run_id
                self._directory.mkdir(parents=True, exist_ok=True)
                file.write_json({"run_id": self._id})
                if not run.data.params:  # A parameter of a run cannot change.
                    params = [entities.Param(name.replace("=", "."), str(value)) for name, value in settings.items()]
                    self._client.log_batch(self._id, params=params)
            except Exception as error:
                if run:
                    self._try(lambda: mlflow.end_run("FAILED"))
                if isinstance(error, UserError):
                    raise
                cure = f"correct MLFLOW_TRACKING_URI{f', or remove {file}, if its run was deleted' if known else ''}"
                raise UserError(f"track=mlflow: no run at {mlflow.get_tracking_uri()}: {error}; {cure}") from error
            self._patience = stack.pop_all()

    def __enter__(self) -> "MlflowRun":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.send({}, 0)
        if self._pending:
            _log.warning("MLflow has not taken %d metrics; metrics.jsonl has them", len(self._pending))
        status = "KILLED" if isinstance(error, StoppedInOrder | KeyboardInterrupt) else "FAILED"
        with self._patience:
            self._try(lambda: self._mlflow.end_run(status if error else "FINISHED"))

    def take(self, line: Line) -> None:
        self.send({f"train/{name}": value for name, value in line.figures().items()}, line.step)

    def send(self, metrics: Mapping[str, float], step: int) -> None:
        """Sends the finite ones of the metrics that belong to a step."""
        now, finite = int(1000 * time.time()), [each for each in metrics.items() if math.isfinite(each[1])]
        self._pending += [self._metric(name, float(value), now, step) for name, value in finite]
        self._try(self._send_pending)

    def describe(self, result: TrainResult, summary: Sequence[str]) -> None:
        """Sends the model's page, which MLflow shows with the run: its last evaluation and summary; and its files."""
        parts = [f"Step {result.global_step:,} of the training in `{self._directory}`.", *(f"- {x}" for x in summary)]
        parts += ["", "```text", format_metrics(result.evaluation), "```"] if result.evaluation else []
        self._try(lambda: self._client.set_tag(self._id, "mlflow.note.content", "\n".join(parts)))
        for path in (self._directory / name for name in _SENT if (self._directory / name).exists()):
            self._try(functools.partial(self._client.log_text, self._id, path.read_bytes().decode(), path.name))

    def _send_pending(self) -> None:
        self._client.log_batch(self._id, metrics=self._pending)
        self._pending.clear()

    def _try(self, request: Callable[[], Any]) -> None:
        """Sends a request; warns if it fails, because a training continues without MLflow."""
        try:
            request()
        except Exception as error:
            _log.warning("MLflow did not answer as expected: %s", error)
