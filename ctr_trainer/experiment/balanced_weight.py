"""The weight of positive examples that --positive_weight=balanced stands for."""

import dataclasses
import logging

from ctr_trainer.data.class_weight import BALANCED, balanced_weight
from ctr_trainer.experiment.open_source import open_source
from ctr_trainer.messages.errors import UserError
from ctr_trainer.models.registry import find_model
from ctr_trainer.ranks import chief_work, distributed

_log = logging.getLogger(__name__)


def with_class_weight(experiment):
    """-> the `Experiment` with the number that --positive_weight=balanced is of --train_data. A collective.

    Raises:
      UserError: the model predicts several labels, or see `balanced_weight`.
    """
    model, params, data = experiment.model, experiment.params, experiment.data
    if params.positive_weight != BALANCED:
        return experiment
    if find_model(model.model).params_class.several_labels:
        raise UserError(
            f"--positive_weight={BALANCED} is of one label, and --model={model.model} predicts several: give a number, "
            "which counts for each of them"
        )
    source = open_source(data.train_data, model.model_dir, data.feature_spec, data.data_cache, fitted=False)

    def count(advanced):
        return balanced_weight(source, params.label, params.negative_sampling, advanced)

    weight = chief_work.from_chief(count, "counting_the_positive_examples")
    if distributed.is_chief():
        _log.info("--positive_weight=%s: %.6g, the negative examples over the positive ones", BALANCED, weight)
    return dataclasses.replace(experiment, params=dataclasses.replace(params, positive_weight=weight))
