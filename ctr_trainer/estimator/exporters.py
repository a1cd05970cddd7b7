"""Exporters that run after evaluations, with the names and arguments of `tf.estimator`."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ctr_trainer.checkpoint.evaluations import EvaluationHistory
from ctr_trainer.export import directory

_log = logging.getLogger(__name__)
DIRECTORY = "export"  # In the model directory.
Metrics = Mapping[str, Any]


class Exporter(Protocol):
    """An element of `EvalSpec.exporters`.

    Attributes:
      name: its directory is `MODEL_DIR/export/<name>`.
    """

    name: str

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Metrics,
        is_the_final_export: bool,
    ) -> str | None:
        """Exports a checkpoint if the exporter decides to. Returns the directory of the SavedModel, or None.

        Called on rank 0 only.

        Args:
          estimator: the `Estimator`.
          export_path: the parent of the SavedModel's directory.
          checkpoint_path: path of the checkpoint that was evaluated.
          eval_result: the metrics, with `global_step`.
          is_the_final_export: False after each evaluation; True in the last call, after training.
        """


class LatestExporter:
    """Exports the model after each evaluation.

    Args:
      name: its directory is `MODEL_DIR/export/<name>`.
      serving_input_receiver_fn: see `Estimator.export_saved_model`; None for a model with a feature spec.
      assets_extra: dict of path in `assets.extra` -> file to copy there.
      as_text: not used, because a SavedModel is binary.
      exports_to_keep: number of newest exports to keep; None keeps all.
    """

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any] | None = None,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        if exports_to_keep is not None and exports_to_keep < 1:
            raise ValueError(f"exports_to_keep={exports_to_keep}: expected at least 1, or None to keep all")
        self.name = name
        self._receive, self._assets, self._keep = serving_input_receiver_fn, assets_extra, exports_to_keep
        self._exported: str | None = None

    def export(
        self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Metrics, is_the_final_export: bool
    ) -> str | None:
        """Exports the checkpoint unless it was exported already; see `Exporter`."""
        if self._exported == checkpoint_path or not self._wants(estimator, eval_result, is_the_final_export):
            return None
        self._exported = checkpoint_path
        path = estimator.export_saved_model(
            export_path, self._receive, checkpoint_path=checkpoint_path, assets_extra=self._assets
        )
        _log.info("%s: exported the model of step %s to %s", self.name, eval_result["global_step"], path)
        if self._keep is not None:
            versions = [version for _, version in directory.versions(export_path) if directory.is_export(version)]
            for version in versions[: len(versions) - self._keep]:
                if directory.discard(version):
                    _log.info("removed the export %s", version)
                else:
                    _log.warning("removed the export %s, but kept the files that were added to it", version)
        return path

    def _wants(self, estimator: Any, metrics: Metrics, is_final: bool) -> bool:
        return True


class FinalExporter(LatestExporter):
    """Exports the model once, after training. For the arguments see `LatestExporter`."""

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any] | None = None,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep=None)

    def _wants(self, estimator: Any, metrics: Metrics, is_final: bool) -> bool:
        return is_final


def loss_smaller(best_eval_result: Metrics, current_eval_result: Metrics) -> bool:
    """Returns whether the current evaluation has a smaller loss than the best one."""
    return current_eval_result["loss"] < best_eval_result["loss"]


class BestExporter(LatestExporter):
    """Exports the model after each evaluation that is better than all earlier ones.

    After a restart, it also compares with the evaluations that are recorded in the model directory.

    Args:
      name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep: see `LatestExporter`.
      event_file_pattern: not used, because the evaluations are in `MODEL_DIR/evaluations.json`.
      compare_fn: f(best_eval_result, current_eval_result) -> whether the current one is better.
    """

    def __init__(
        self,
        name: str = "best_exporter",
        serving_input_receiver_fn: Callable[[], Any] | None = None,
        event_file_pattern: str | None = None,
        compare_fn: Callable[[Metrics, Metrics], bool] = loss_smaller,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep)
        self._is_better = compare_fn
        self._best: Metrics | None = None

    def _wants(self, estimator: Any, metrics: Metrics, is_final: bool) -> bool:
        if self._best is None:
            for earlier in EvaluationHistory.load(estimator.model_dir).current:
                if earlier["step"] < metrics["global_step"]:
                    self._take({**earlier, "global_step": earlier["step"]})
        return self._take(metrics)

    def _take(self, metrics: Metrics) -> bool:
        """Returns whether an evaluation is better than all earlier ones; if so, remembers it."""
        is_best = self._best is None or self._is_better(self._best, metrics)
        if is_best:
            self._best = metrics
        return is_best
