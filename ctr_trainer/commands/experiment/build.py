"""Builds the objects of a run from an `Experiment`: the Estimator, the evaluations and the data."""

import dataclasses
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from ctr_trainer.checkpoint.checkpoint import Checkpoint
from ctr_trainer.commands.experiment.as_trained import as_trained
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.commands.experiment.open_source import open_source
from ctr_trainer.data.class_weight import BALANCED, balanced_weight
from ctr_trainer.data.dataset import FILE, open_dataset
from ctr_trainer.data.input_schemes import is_stream
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.data.source import Source
from ctr_trainer.embedding.service.local_service import LocalServices
from ctr_trainer.estimator import Estimator, EvalSpec
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.models import param_texts
from ctr_trainer.models.params import SHARED, WAIT
from ctr_trainer.models.registry import find_model
from ctr_trainer.ranks import dense_exchange, distributed
from ctr_trainer.settings.by_flag import alike, refusing_by_flags, require
from ctr_trainer.settings.training_configs import EvaluationConfig
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.messages.errors import UserError

if TYPE_CHECKING:
    from ctr_trainer.live.stream.reader import StreamReader

# A wait after which the log names the rank and the phase that it waits for.
_STALL_WARNING_SECONDS = 60.0
_log = logging.getLogger(__name__)


def with_label_rates(experiment: Experiment) -> Experiment:
    """Returns the `Experiment` with the shares of positive examples at which its training starts. A collective.

    `label_means` are the shares that the conversion of --train_data counted; they stay unknown for data that is not
    converted. --positive_weight=balanced is replaced by its number. With late labels, the log reports which of its
    metrics are biased.

    Raises:
      UserError: the weight is `balanced` and the model predicts several labels; see also `balanced_weight`.
    """
    params, path = experiment.params, experiment.data.train_data

    def look(advanced: Callable[[str], None]) -> dict[str, float]:
        is_converted = not is_stream(path) and (path_of(path) / FILE).exists()
        return open_dataset(path).label_means if is_converted else {}

    means = distributed.from_chief(look, "the_shares_of_positive_examples")
    if params.positive_weight == BALANCED:
        params = dataclasses.replace(params, positive_weight=_balanced(experiment))
    params = dataclasses.replace(params, label_means=means)
    if distributed.is_chief() and any(params.base_logit(label) for label in means):
        shares = ", ".join(f"{label} {mean:.4%}" for label, mean in means.items())
        _log.info("share of positive examples in %s: %s; the last bias of the model starts at it", path, shares)
    if distributed.is_chief() and params.delayed_labels != WAIT:
        _log.info(
            "--delayed_labels=%s: auc, xentropy_mean, real_mean and copc of the training data are biased, since they "
            "count an impression whose label is late as a negative. Evaluate on data whose labels are all known",
            params.delayed_labels,
        )
    return dataclasses.replace(experiment, params=params)


def _balanced(experiment: Experiment) -> float:
    """Returns the weight of positive examples for --positive_weight=balanced."""
    model, params, data = experiment.model, experiment.params, experiment.data
    if find_model(model.model).params_class.several_labels:
        raise UserError(
            f"--positive_weight={BALANCED} is of one label, and --model={model.model} predicts several: give a number, "
            "which counts for each of them"
        )
    if is_stream(data.train_data):
        raise UserError(f"--positive_weight={BALANCED}: the examples of a stream cannot be counted: give a number")
    source = open_source(data.train_data, experiment, fitted=False)

    def count(advanced: Callable[[str], None]) -> float:
        return balanced_weight(source, params.label, params.negative_sampling, advanced)

    weight = distributed.from_chief(count, "counting_the_positive_examples")
    if distributed.is_chief():
        _log.info("--positive_weight=%s: %.6g, the negative examples over the positive ones", BALANCED, weight)
    return weight


def start_workers(experiment: Experiment, core_shares: int = 0, gpus_each: int = 1) -> None:
    """Starts Horovod for a training, see `distributed.init`."""
    exchange = experiment.run.dense_exchange
    distributed.init(
        experiment.workers.stall_timeout,
        pin_cores=True,
        stall_warning=_STALL_WARNING_SECONDS,
        core_shares=core_shares,
        steps_exchange=dense_exchange.exchange(exchange).way == "horovod",
        flags=alike(experiment),
        gpus_each=gpus_each,
        deterministic=experiment.run.deterministic,
        sums_by_host=exchange == "auto",
    )


def make_estimator(experiment: Experiment, services: LocalServices | None = None) -> Estimator:
    """Returns the Estimator of an `Experiment`; for training, first apply `with_label_rates`.

    Raises:
      UserError: --model_dir is missing, the model does not exist, or it does not accept a param.
    """
    model, params = experiment.model, experiment.params
    require(model, "model_dir")
    tf.get_logger().setLevel("INFO")
    tf.get_logger().addFilter(_is_error_or_of_a_hook)
    shared = {name: getattr(params, name) for name in SHARED} | {"train_op_fn": TrainOp(**vars(experiment.train))}
    if params.positive_weight == BALANCED:
        shared["positive_weight"] = 1.0
    own = param_texts.parse(model.model, find_model(model.model).params_class, model.model_params, shared)
    return Estimator(model.model, model.model_dir, own, experiment.run, services=services)


def open_trained(
    given: frozenset[str], experiment: Experiment, checkpoint: str
) -> tuple[Experiment, Estimator, Checkpoint]:
    """Returns (the settings of the trained model, see `as_trained`; its Estimator; its checkpoint of this name)."""
    experiment = as_trained(given, experiment)
    estimator = make_estimator(experiment)
    return experiment, estimator, estimator.find_checkpoint(checkpoint)


def _is_error_or_of_a_hook(record: logging.LogRecord) -> bool:
    """Hides TensorFlow's warnings about TensorFlow 1 names, which are used on purpose."""
    says = record.levelno == logging.INFO and record.module == "basic_session_run_hooks"
    return says or record.levelno >= logging.ERROR


def make_eval_spec(
    evaluation: EvaluationConfig, input_fn: Callable[[], BatchReader], at_end: bool = False
) -> EvalSpec | None:
    """Returns the `EvalSpec` of a training's evaluations; None if there are none.

    With `at_end`, a training without periodic evaluations is evaluated at its end.
    """
    if not evaluation.evaluates and not at_end:
        return None
    settings = vars(evaluation) if evaluation.evaluates else {**vars(evaluation), "every_n_steps": 0}
    with refusing_by_flags():
        return EvalSpec(input_fn=input_fn, **settings)


def training_reader(experiment: Experiment, position: Any) -> "BatchReader | StreamReader":
    """Returns this rank's batches of --train_data, with only the negative examples that --negative_sampling keeps."""
    if is_stream(experiment.data.train_data):
        from ctr_trainer.commands.experiment.open_stream import open_stream

        return open_stream(experiment, position)
    return reader(experiment, experiment.data.train_data, position)


def reader(
    experiment: Experiment, data: str | Source, position: Any = None, once: bool = False, labels: bool = True
) -> BatchReader:
    """Returns this rank's batches of a converted or foreign data set, beginning at a position. A collective.

    With `once`, every row is read once, in the order of the files, as evaluation does; otherwise only the negative
    examples that --negative_sampling keeps count. Prediction requires no `labels`.
    """
    how, model = experiment.data, experiment.model
    return BatchReader(
        open_source(data, experiment, labels, warns=not once) if isinstance(data, str) else data,
        how.batch_size,
        rank=distributed.rank(),
        size=distributed.size(),
        shuffle=how.shuffle_buffer > 0 and not once,
        seed=experiment.run.seed,
        epochs=1 if once else how.epochs or None,
        position=position,
        dim=model.embedding_dim or None,
        labels=labels,
        num_readers=how.num_readers,
        shuffle_buffer=how.shuffle_buffer,
        negative_sampling=None if once else experiment.params.negative_sampling,
    )
