"""Evaluation, prediction and export of a trained model."""

import contextlib
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.checkpoint import model_directory
from ctr_trainer.checkpoint.checkpoint import Checkpoint, list_checkpoints, newest_whole
from ctr_trainer.checkpoint.model_directory import load_features
from ctr_trainer.checkpoint.model_record import ModelRecord
from ctr_trainer.embedding.service.local_service import LocalServices
from ctr_trainer.embedding.table.cold_rows import disk_of
from ctr_trainer.embedding.worker.new_keys import NewKeys
from ctr_trainer.estimator import program
from ctr_trainer.estimator.batch_feed import connect
from ctr_trainer.estimator.evaluation import Evaluation
from ctr_trainer.estimator.feed import Feed
from ctr_trainer.estimator.hooks.log_hooks import ProgressHook
from ctr_trainer.estimator.open_store import open_evaluation_store, restore_evaluated
from ctr_trainer.estimator.program import call_input_fn, make_input
from ctr_trainer.estimator.session import session_of
from ctr_trainer.estimator.slices import Slices
from ctr_trainer.estimator.train_and_evaluate import EvaluationResult, refuse_unless_positive
from ctr_trainer.estimator.training import begin_feed, default_graph
from ctr_trainer.export import directory
from ctr_trainer.export.saved_model import export_saved_model
from ctr_trainer.models.estimator_spec import EstimatorSpec, ModeKeys, session_hooks
from ctr_trainer.models.params import params_as_trained
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.system.files.paths import Advanced, path_of
from ctr_trainer.system.messages.errors import NamedArguments


class TrainedModel(NamedArguments):
    """Evaluates a `model_fn`, predicts with it and exports it.

    The constructor starts Horovod if `distributed.init` was not called. For a function as `model_fn`, it disables
    TensorFlow's eager mode, as programs for TensorFlow 1 expect.

    Attributes:
      new_keys: the `NewKeys` of this rank's last evaluation or prediction.
      advanced: f(text), which an export calls as it progresses; within a training, the other ranks then keep waiting.
        An `Exporter` whose own work is long calls it, too.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any] | str,
        model_dir: str | os.PathLike[str] | None = None,
        params: Any = None,
        config: RunConfig | None = None,
        name: str | None = None,
        may_change: Sequence[str] = (),
        services: LocalServices | None = None,
        warm_start_from: Any = None,
    ) -> None:
        """Configures a model.

        Args:
          model_fn: the name of a model of this package, such as `deepfm`, or a function f(features, labels, mode,
            params) -> `EstimatorSpec`. It may omit any argument except `features`, and may declare `config`. If the
            input is a `tf.data.Dataset`, `features` is a dict of tensors. If the input is a `BatchReader`, `features`
            is `features.tensors.Features`, and `labels` is float32[B], or a dict of name -> float32[B] if there are
            several labels. With several workers, the loss must be the mean over the batch's examples, see
            `EstimatorSpec`.
          model_dir: directory of checkpoints, summaries and the feature spec: a path or a URL; None for
            `RunConfig.model_dir`. A rank that has neither takes the directory of rank 0 when it first trains, evaluates
            or predicts.
          params: the `params` of `model_fn`; None for {}. For the name of a model, they are its `Params` or a dict of
            them, by default with `TrainOp()` as `train_op_fn`. The values of a dataclass or a dict that JSON can
            represent are stored with each checkpoint, and a trained model refuses other values. The values that
            `ModelParams.may_change` names may change; in params of another class, these are `learning_rate`, `dropout`
            and `batch_size`.
          config: `RunConfig`.
          name: the name of the model in checkpoints; None for the import path of `model_fn`.
          may_change: names of additional params that may change.
          services: `LocalServices` that rank 0 started before TensorFlow was imported; None to start them later.
          warm_start_from: a path, see `RunConfig.warm_start`; the path of a TensorFlow checkpoint; or
            `WarmStartSettings`.
        """
        if isinstance(params, RunConfig):  # tf.estimator has the two in this order.
            params, config = config, params
        distributed.watchdog()  # Calls `distributed.init` if it was not called.
        if isinstance(model_fn, str):
            name = name or model_fn
            model_fn, params = program.model_named(model_fn, params)
        else:
            tf1.disable_eager_execution()
        self._given_fn = model_fn
        self._configure(program.config_of(config or RunConfig(), model_dir))
        self.params = {} if params is None else params
        self._name, self._may_change, self._services = name, may_change, services
        self._warm_start, self.new_keys = warm_start_from, NewKeys()
        self.advanced: Advanced = lambda text: None

    def __repr__(self) -> str:
        steps = [each.step for each in list_checkpoints(self.model_dir)] if self.model_dir else []
        return f"Estimator({self._model.name!r}, model_dir={self.model_dir!r}, step={steps[-1] if steps else 0})"

    def _configure(self, config: RunConfig) -> None:
        self.config, self.model_fn = config, program.with_four_arguments(self._given_fn, config)
        self.model_dir = str(path_of(config.model_dir).absolute()) if config.model_dir else ""

    def _take_directory(self) -> None:
        """Takes the model directory of rank 0 if this rank was given none. A collective."""
        directory = distributed.broadcast_object(self.config.model_dir, "model_dir")
        if not self.model_dir:
            self._configure(self.config.replace(model_dir=directory))

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[tf1.train.SessionRunHook] | None = (),
        checkpoint_path: str | None = None,
        name: str | None = None,
        group_by: str = "",
        slices: Slices | None = None,
    ) -> EvaluationResult:
        """Computes the metrics of a checkpoint over the examples of all ranks. A collective.

        Args:
          input_fn: f() -> `BatchReader` or `tf.data.Dataset`, this rank's share of the data, see `train`. A key that
            training never saw has a row of zeros.
          steps: number of batches per rank; None for all.
          hooks: additional session hooks.
          checkpoint_path: a `Checkpoint`, the directory of one, or its path as TensorFlow's `Saver` names it; None for
            the newest.
          name: not used, because only evaluations during training write summaries.
          group_by: see `EvalSpec`.
          slices: adds the metrics by the value of a column; the input reads `slices.source`.

        Returns:
          `EvaluationResult`, a dict of the metrics by name, equal on all ranks.

        Raises:
          UserError: there is no such checkpoint, example or column, or another model wrote the checkpoint.
        """
        refuse_unless_positive(steps=steps)
        checkpoint = self._chosen(checkpoint_path)
        graph = default_graph(tf.Graph(), self.config)
        with graph, self._model_of(ModeKeys.EVAL, input_fn, checkpoint) as (feed, spec):
            evaluation = Evaluation(feed, spec, group_by, slices)
            progress = ProgressHook("evaluating", steps or feed.inputs.batches_per_epoch)
            own = [*(spec.evaluation_hooks or ()), *session_hooks(hooks), progress]
            with session_of(checkpoint, own, self.config) as session:
                while not session.should_stop() and (steps is None or evaluation.steps < steps):
                    evaluation.step(session)
        return EvaluationResult(global_step=checkpoint.step, **evaluation.results())

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: str | Sequence[str] | None = None,
        hooks: Sequence[tf1.train.SessionRunHook] | None = (),
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[dict[str, Any]]:
        """Yields the predictions for this rank's share of the input, in the order of the input.

        Args:
          input_fn: f() -> `BatchReader` or `tf.data.Dataset`, this rank's share of the data, see `train`.
          predict_keys: names of the predictions to compute; None for all.
          hooks: additional session hooks.
          checkpoint_path: see `evaluate`.
          yield_single_examples: whether to yield one dict per example instead of one dict of arrays per batch.

        Yields:
          dict of name -> value, or array of the values of a batch. It also has the id columns of the data, and the
          labels if there are any; see `BatchFeed.with_columns`.

        Raises:
          UserError: there is no such checkpoint or prediction, or another model wrote the checkpoint.
        """
        checkpoint, graph = self._chosen(checkpoint_path), tf.Graph()
        batches = self._predicted(input_fn, predict_keys, session_hooks(hooks), checkpoint)
        try:
            while True:
                # The code between two predictions has its own default graph, and may train a model.
                with default_graph(graph, self.config):
                    values = next(batches, None)
                if values is None:
                    return
                if yield_single_examples:
                    for index in range(len(next(iter(values.values())))):
                        yield {name: value[index] for name, value in values.items()}
                else:
                    yield values
        finally:
            with default_graph(graph, self.config):
                batches.close()

    def _predicted(
        self,
        input_fn: Callable[..., Any],
        predict_keys: str | Sequence[str] | None,
        hooks: Sequence[tf1.train.SessionRunHook],
        checkpoint: Checkpoint,
    ) -> Generator[dict[str, np.ndarray], None, None]:
        """Yields the predictions of each batch. The default graph is the same at each step of the generator."""
        with self._model_of(ModeKeys.PREDICT, input_fn, checkpoint) as (feed, spec):
            predictions = program.chosen_predictions(spec.predictions, predict_keys)
            progress = ProgressHook("predicting", feed.inputs.batches_per_epoch)
            own = [*(spec.prediction_hooks or ()), *hooks, progress]
            with session_of(checkpoint, own, self.config) as session:
                while not session.should_stop():
                    fed = feed.next()
                    yield feed.with_columns(fed, session.run(predictions, fed.feed))
            if distributed.size() == 1:  # Of several ranks, some may stop early, so the caller adds up their counts.
                self.new_keys.report(distributed.all_sum)

    def export_saved_model(
        self,
        export_dir_base: str,
        serving_input_receiver_fn: Callable[[], Any] | None = None,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
    ) -> str | None:
        """Writes a SavedModel of stock operations to a new directory, named by a number above all others there.

        Not a collective: rank 0 writes the SavedModel, and other ranks do nothing.

        Args:
          export_dir_base: the parent of the new directory.
          serving_input_receiver_fn: for a model fed by a `tf.data.Dataset`: f() -> object with `features` and
            `receiver_tensors`; `estimator.export` has functions that make one. If None, the inputs of the graph are the
            raw values of the feature spec.
          assets_extra: dict of path in `assets.extra` -> the file to copy there.
          as_text: not used, because a SavedModel is binary.
          checkpoint_path: see `evaluate`.

        Returns:
          the path of the SavedModel; None on ranks other than 0.

        Raises:
          UserError: there is no such checkpoint, another model wrote it, or the graph cannot be exported.
        """
        if not distributed.is_chief():
            return None
        path = directory.next_version(export_dir_base)
        return self.export_to(path, serving_input_receiver_fn, checkpoint_path, assets_extra=assets_extra)

    export_savedmodel = export_saved_model

    def export_to(
        self,
        path: str,
        serving_input_receiver_fn: Callable[[], Any] | None = None,
        checkpoint_path: str | None = None,
        rows: str = "all",
        assets_extra: Mapping[str, str] | None = None,
    ) -> str:
        """Writes a SavedModel of stock operations to `path` itself. Call it on rank 0 only.

        Args:
          path: directory, or its URL. An earlier export there is replaced; other files are never replaced.
          serving_input_receiver_fn, assets_extra: see `export_saved_model`.
          checkpoint_path: see `evaluate`.
          rows: `all`, or `none` for the dense tower alone, whose inputs are rows; see `export.receivers.RowInputs`.

        Returns:
          `path`.

        Raises:
          UserError: there is no checkpoint, another model wrote it, or `path` holds files of another kind.
        """
        checkpoint = model_directory.chosen_checkpoint(self.model_dir, checkpoint_path, self.advanced)
        self._model.check(checkpoint, self.model_dir)
        features = load_features(self.model_dir)
        return export_saved_model(
            path,
            self.model_fn,
            self.params,
            checkpoint,
            features,
            serving_input_receiver_fn,
            rows=rows,
            assets_extra=assets_extra,
            advanced=self.advanced,
        )

    def get_variable_names(self) -> list[str]:
        """Returns the names of the dense variables in the newest checkpoint, optimizer state included. A collective."""
        return sorted(self._variables().get_variable_to_shape_map())

    def get_variable_value(self, name: str) -> np.ndarray:
        """Returns the value of the dense variable `name` in the newest checkpoint, an array. A collective."""
        return self._variables().get_tensor(name)

    def latest_checkpoint(self) -> Checkpoint | None:
        """Returns the newest intact `Checkpoint`, a path; None if there is no checkpoint. A collective."""
        self._take_directory()
        return model_directory.on_every_rank(lambda advanced: newest_whole(self.model_dir, advanced))

    def find_checkpoint(self, which: str) -> Checkpoint:
        """Returns a `Checkpoint`, a path. A collective.

        Args:
          which: `latest`, `best` (by `EvalSpec.best_metric`), a step as text, or `auto`, the best checkpoint if one is
            kept, else the newest.

        Raises:
          UserError: there is no such checkpoint.
        """
        self._take_directory()
        return model_directory.find_checkpoint(self.model_dir, which)

    def _variables(self) -> Any:
        """Returns the `tf.train.CheckpointReader` of the newest checkpoint. A collective."""
        with self._chosen().with_local_dense() as found:
            return tf1.train.load_checkpoint(found.dense_prefix)

    @property
    def _model(self) -> ModelRecord:
        return ModelRecord.of(self.model_fn, self._name, self.params, self.config, self._may_change)

    def _chosen(self, path: str | None = None) -> Checkpoint:
        """Returns the checkpoint at a path, or the newest one; refuses that of another model. A collective."""
        self._take_directory()
        checkpoint = model_directory.on_every_rank(
            lambda advanced: model_directory.chosen_checkpoint(self.model_dir, path, advanced)
        )
        self._model.check(checkpoint, self.model_dir)
        return checkpoint

    @contextlib.contextmanager
    def _model_of(self, mode: str, input_fn: Callable, checkpoint: Checkpoint) -> Iterator[tuple[Feed, EstimatorSpec]]:
        """Builds the model of a mode, and restores the rows of a checkpoint into a separate store. A collective."""
        with contextlib.ExitStack() as stack:
            params = params_as_trained(self.params, checkpoint)
            inputs = make_input(call_input_fn(input_fn, mode, params, self.config), self.model_dir)
            labels = inputs.labels if mode == ModeKeys.EVAL else None
            spec = self.model_fn(inputs.features, labels, mode, params)
            disk = disk_of(self.config.embedding.disk, self.model_dir)
            store = stack.enter_context(open_evaluation_store(disk))
            feed = connect(inputs, store, self.config, trained=model_directory.trained_tables(checkpoint))
            self.new_keys = feed.new_keys
            self.new_keys.in_training = checkpoint.model.get("new_keys", {})
            stack.callback(feed.close)  # Its threads use the store, so they end before the store is closed.
            restore_evaluated(store, checkpoint)
            begin_feed(stack, feed)
            yield feed, spec
