"""What the share of positive examples in --train_data sets: where the last bias starts, and the balanced weight."""

import dataclasses
import logging

from ctr_trainer.data.class_weight import BALANCED, balanced_weight
from ctr_trainer.data.dataset import FILE, open_dataset
from ctr_trainer.experiment.experiment import Experiment
from ctr_trainer.experiment.open_source import open_source
from ctr_trainer.files.paths import path_of
from ctr_trainer.messages.errors import UserError
from ctr_trainer.models.registry import find_model
from ctr_trainer.ranks import distributed

_log = logging.getLogger(__name__)


def with_label_rates(experiment: Experiment) -> Experiment:
    """Returns the `Experiment` with the shares of positive examples that its training starts from. A collective.

    `label_means` are the shares that the conversion of --train_data counted; of data without a conversion they stay
    unknown. --positive_weight=balanced becomes the number that it stands for.

    Raises:
      UserError: the weight is to be balanced, and the model predicts several labels, or see `balanced_weight`.
    """
    params, path = experiment.params, experiment.data.train_data

    def look(advanced):
        return open_dataset(path).label_means if (path_of(path) / FILE).exists() else {}

    means = distributed.from_chief(look, "the_shares_of_positive_examples")
    if params.positive_weight == BALANCED:
        params = dataclasses.replace(params, positive_weight=_balanced(experiment))
    params = dataclasses.replace(params, label_means=means)
    if distributed.is_chief() and any(params.base_logit(label) for label in means):
        shares = ", ".join(f"{label} {mean:.4%}" for label, mean in means.items())
        _log.info("share of positive examples in %s: %s; the last bias of the model starts at it", path, shares)
    return dataclasses.replace(experiment, params=params)


def _balanced(experiment: Experiment) -> float:
    """Returns the weight of positive examples that --positive_weight=balanced stands for."""
    model, params, data = experiment.model, experiment.params, experiment.data
    if find_model(model.model).params_class.several_labels:
        raise UserError(
            f"--positive_weight={BALANCED} is of one label, and --model={model.model} predicts several: give a number, "
            "which counts for each of them"
        )
    source = open_source(data.train_data, model.model_dir, data.feature_spec, data.data_cache, fitted=False)

    def count(advanced):
        return balanced_weight(source, params.label, params.negative_sampling, advanced)

    weight = distributed.from_chief(count, "counting_the_positive_examples")
    if distributed.is_chief():
        _log.info("--positive_weight=%s: %.6g, the negative examples over the positive ones", BALANCED, weight)
    return weight
