"""What an `input_fn` returns, as a graph takes it."""

import dataclasses
import inspect
import logging
import os

from ctr_trainer import durable_file, row_training, step_plan
from ctr_trainer.data.position import progress
from ctr_trainer.data.prefetch import Prefetch
from ctr_trainer.errors import UserError
from ctr_trainer.estimator.dataset_input import DatasetInput
from ctr_trainer.estimator.embeddings import Embeddings
from ctr_trainer.estimator.finding import newest_record
from ctr_trainer.estimator.whole_steps import WholeSteps
from ctr_trainer.features.fed import FedFeatures
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.hooks.input_hook import InputHook
from ctr_trainer.latency import Latency
from ctr_trainer.row_training import RowTraining
from ctr_trainer.run_length import Epochs

_log = logging.getLogger(__name__)
_FEATURES_FILE = "features.json"
_FEATURES_CURE = "put a copy of this file in its place, or train into another --model_dir"


def call_input_fn(input_fn, mode, params, config, position=None):
    """Calls `input_fn` with those of `mode`, `params`, `config` and `position` that it declares.

    Args:
      position: where the input goes on after a restart, as `BatchReader.position_after` gave it.
    """
    offered = {"mode": mode, "params": params, "config": config, "position": position}
    declared = inspect.signature(input_fn).parameters
    return input_fn(**{name: value for name, value in offered.items() if name in declared})


class BatchInput:
    """A `data.reader.BatchReader`, or any iterable of `Batch` with its `spec`, `statistics` and `batch_size`: fed.

    Of a spec with quantiles it needs `with_statistics` too, to be evaluated on data with statistics of their own.

    Args:
      spec, statistics: of the data that the model was trained on; the reader's own for a new model.
    """

    def __init__(self, reader, spec, statistics):
        self._reader = reader
        self.features = FedFeatures(spec, statistics, reader.batch_size)
        self.labels = self.features.labels
        self.hook, self.hooks, self.embeddings = None, [], None
        self._prefetch = None
        self._has_read = None
        # One's own reader that measures nothing is measured from outside.
        self._read_latency = getattr(reader, "read_latency", None) or Latency("OpsReadSample")

    weight = None

    def weights(self, labels):
        """-> float32[B], what each example counts in the metrics.

        Args:
          labels: float32[B], of the batch.
        """
        return self.features["weight"]

    def count(self, has_read):
        """Calls `has_read`, f(), after each batch."""
        self._has_read = has_read

    fed = True

    @property
    def latencies(self):
        """-> `Latency` of each operation on batches and rows, in whatever thread it is done."""
        rows = self.embeddings
        return [rows.lookup_latency, self._read_latency, rows.push_latency, rows.sync_latency]

    @property
    def uses_embeddings(self):
        """Whether the model asked for any embedding input; known once it was built."""
        return bool(self.features.segments)

    @property
    def batch_size(self):
        """Examples of a batch, padding included."""
        return self._reader.batch_size

    @property
    def batches(self):
        """How many the input has, from its start on; None if it does not know."""
        return getattr(self._reader, "steps", None)

    @property
    def in_epochs(self):
        """-> `run_length.Epochs`; None if the reader does not know."""
        if not (hasattr(self._reader, "steps_per_epoch") and hasattr(self._reader, "steps_before")):
            return None
        return Epochs(self._reader.steps_per_epoch, self._reader.steps_before)

    @property
    def steps(self):
        """How many optimizer steps the input is for, from its start on; None if it does not know."""
        return None if self.batches is None else -(-self.batches // self._per_step)

    def position_after(self, steps):
        """-> where the input stands after `steps` more steps of every worker; None if the reader does not know."""
        if not hasattr(self._reader, "position_after"):
            return None
        return self._reader.position_after(self._batches.taken_by(steps))

    @property
    def epochs(self):
        """How many the whole run has, with those before its start; None if the input does not know."""
        return getattr(self._reader, "epochs", None)

    def epochs_after(self, steps):
        """-> how many epochs, a float, are done after `steps` more steps; None if the reader does not know."""
        known = progress(self.position_after(steps))
        return known and known[0]

    def beside(self, batch, predictions):
        """-> by column, the values of a batch's examples: its id columns, its labels if the data has any, predictions.

        The label is named `label`, float32, NaN for an example that has none; of several, `label/NAME`. A `_` is added
        to a name that an id column or a prediction has.
        """
        columns, spec = {**batch.ids}, self._reader.spec
        if spec.labelled:
            several = [f"label/{label.name}" for label in spec.labels] if spec.other_labels else ["label"]
            for name, labels in zip(several, batch.labels.reshape(len(batch.labels), -1).T, strict=True):
                while name in columns or name in predictions:
                    name += "_"
                columns[name] = labels
        return {name: value[: batch.size] for name, value in {**columns, **predictions}.items()}

    def connect(self, store, config, spec=None, trained=None, within_training=False, phases=None):
        """Ties the embedding inputs that the model asked for to the store. Nothing is read before `rewind`.

        Args:
          spec: the `EstimatorSpec` to train; None to evaluate or predict.
          trained: by table name, the `TableConfig` it was trained with; None to train it as `config` says.
          within_training: whether it is evaluated while another input trains: then rows are read from the store as they
            are at each step.
          phases: `Phases` of the training thread; None where nobody looks at them.
        """
        self._phases = phases
        self._row_training = None
        if spec is not None:
            self._row_training = row_training.current() or RowTraining.of_loss(
                self.features, spec.loss, config.embedding.learning_rate
            )
        self._per_step = step_plan.current().accumulation_steps if spec is not None else 1
        self._batches = WholeSteps(self._reader, self._per_step)
        ahead = config.prefetch_batches if spec is not None else 0
        self.embeddings = Embeddings(
            self.features,
            config.embedding,
            config.tf_random_seed,
            store,
            ahead,
            trained,
            self._row_training and self._row_training.learning_rate_scale,
            within_training,
        )
        self._prefetch_batches, self._training = config.prefetch_batches, spec is not None
        if self._training and config.embedding.overlap_lookup and self.features.spec.limits:
            raise UserError(
                "overlap_lookup: with [[limits]] of the feature spec a row could go while a step is to train it: leave "
                "out one of the two"
            )
        self._feed(())

    def rewind(self):
        """Feeds from the first batch on."""
        self.close()
        self._feed(self._read())

    def _read(self):
        is_measured = hasattr(self._reader, "read_latency")
        batches = self._batches if is_measured else self._read_latency.each(self._batches)
        self._prefetch = Prefetch(self.embeddings.prepare(batches), self._prefetch_batches)
        return self._prefetch

    def _feed(self, batches):
        rows = self.embeddings.feed(batches, self._training)
        self.hook = InputHook(self.features, self.embeddings, rows, self._row_training, self._phases, self._has_read)
        self.hooks = [self.hook]

    def close(self):
        """Ends the threads that read ahead and that sync; before the store is closed, which both use."""
        if self._prefetch is not None:
            self.hook.close()
            self._prefetch.close()
            self.embeddings.close()


def make_input(data, model_dir, trained=None):
    """-> `DatasetInput` or `BatchInput` of what an `input_fn` returned.

    Args:
      trained: (FeatureSpec, statistics) of the model; None for what `model_dir` has.

    Raises:
      UserError: the data's feature spec is not that of the model in `model_dir`.
    """
    if not hasattr(data, "spec"):
        return DatasetInput(data)
    trained = trained or load_features(model_dir)
    if trained is None:
        return BatchInput(data, data.spec, data.statistics)
    spec, statistics = trained
    if (spec.dense, spec.sparse) != (data.spec.dense, data.spec.sparse):
        raise UserError(
            f"the data's feature spec {data.spec.name!r} has other features than the one that the model in {model_dir} "
            f"was trained with ({os.path.join(model_dir, _FEATURES_FILE)}); convert the data with that spec, or train "
            "into another --model_dir"
        )
    names, own = [label.name for label in spec.labels], [label.name for label in data.spec.labels]
    if len(names) != len(own) or (len(names) > 1 and names != own):
        raise UserError(
            f"the data has the labels {', '.join(own)}, and the model in {model_dir} was trained on "
            f"{', '.join(names)}; convert the data with the model's feature spec"
        )
    if any(data.statistics.get(f.name) != statistics.get(f.name) for f in spec.sparse if f.quantiles):
        data = data.with_statistics(statistics)
    # Which keys have rows may be decided anew for each run.
    return BatchInput(data, dataclasses.replace(spec, limits=data.spec.limits), statistics)


def save_features(model_dir, features):
    """Keeps the feature spec and the dense statistics beside the model, for evaluation and export."""
    values = {"spec": features.spec.to_dict(), "statistics": features.statistics}
    durable_file.write_json(os.path.join(model_dir, _FEATURES_FILE), values)


def load_features(model_dir):
    """-> (FeatureSpec, statistics) of the model in `model_dir`, or None.

    Where their file is gone or damaged, those that the newest checkpoint has as well.

    Raises:
      UserError: the file is empty, was cut off or altered, and no checkpoint has them.
    """
    path = os.path.join(model_dir, _FEATURES_FILE)
    try:
        saved = durable_file.read_json(path, _FEATURES_CURE)
    except UserError as error:
        saved = (newest_record(model_dir) or {}).get("features")
        if saved is None and os.path.exists(path):
            raise
        if saved is None:
            return None
        _log.warning("%s. The newest checkpoint has a copy, which is used", error)
    try:
        return FeatureSpec.from_dict(saved["spec"], f"{path}: spec"), saved["statistics"]
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: no feature spec and statistics of a model ({error!r}); {_FEATURES_CURE}") from error
