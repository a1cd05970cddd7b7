"""The plans of the trials: the user's settings with some flags changed, as flags of `train`."""

import dataclasses
import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

from absl import flags as absl_flags

from ctr_trainer.commands.experiment import flags
from ctr_trainer.commands.experiment.checks import check_training
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.commands.experiment.recipes import Facts, choices
from ctr_trainer.commands.studies.space import Space
from ctr_trainer.settings.by_flag import alike, by_flag, changed, replaced, text_of
from ctr_trainer.settings.schedule import Schedule
from ctr_trainer.settings.training_configs import EvaluationConfig, MetricsConfig
from ctr_trainer.system.messages.errors import UserError

GROUPS = (Experiment, EvaluationConfig, MetricsConfig)
# The objective if the user sets no best_metric. Unlike AUC, it also measures the calibration of the probabilities.
OBJECTIVE = "logloss"
# Settings that each trial sets itself. A trial needs only its best evaluation, so it saves no periodic checkpoints.
_OF_A_TRIAL = ("model_dir", "resume_from", "publish", "log_format", "autotune", "summary_steps")
_PERIODS = ("save_checkpoints_steps", "save_checkpoints_secs")
# Number of evaluations per epoch if the user does not set it.
_EVALUATIONS = 2
# The recipe of `train` for the data. The first trial uses it; the other trials have the fixed defaults instead.
_BY_THE_DATA = "data"


@dataclasses.dataclass(frozen=True)
class TrialPlan:
    """The settings of one training; `given` are the names of the flags that the user set."""

    experiment: Experiment
    evaluation: EvaluationConfig
    metrics: MetricsConfig
    given: frozenset[str] = frozenset()

    @property
    def step_rows(self) -> int:
        """The number of examples per optimizer step."""
        return self.experiment.data.batch_size * self.experiment.train.accumulation_steps

    @property
    def metric(self) -> str:
        """The metric by which trials are compared."""
        return self.evaluation.best_metric or OBJECTIVE

    def texts(self) -> dict[str, str]:
        """Returns the texts of all flags that the user set or that differ from their defaults."""
        values: dict[str, Any] = {}
        for group in (self.experiment, self.evaluation, self.metrics):
            own = by_flag(group)
            values |= {name: own[name] for name in self.given & set(own)} | changed(group)
        return {name: text_of(name, value) for name, value in values.items() if value is not None}

    def with_flags(self, texts: Mapping[str, str]) -> "TrialPlan":
        """Returns the plan with other flags, parsed like the command line.

        `model_params=NAME` sets one of the model's params. If a flag replaces the optimizer or the schedule, the
        settings of the previous one are dropped.

        Raises:
          UserError: there is no such flag, or a value is invalid.
        """
        values = flags.define(GROUPS)
        named = [(flag.partition("="), text) for flag, text in texts.items()]
        try:
            values(["search", *(f"--{n}={p}={t}" if p else f"--{n}={t}" for (n, _, p), t in named)])
            parsed = flags.parsed(GROUPS, values)
            read = {name: value for name, value in parsed.items() if values[name.partition("=")[0]].present}
        except absl_flags.Error as error:
            raise UserError(str(error)) from None
        if unknown := sorted(name for name in read if name in _OF_A_TRIAL):
            raise UserError(f"{unknown[0]}: this flag cannot differ between trials; remove it from the space")
        if "model_params" in read:
            replacing = {text.partition("=")[0] for text in read["model_params"]}
            kept = (each for each in self.experiment.model.model_params if each.partition("=")[0] not in replacing)
            read["model_params"] = (*kept, *read["model_params"])
        experiment, train = self.experiment, self.experiment.train
        if read.get("lr_schedule", train.schedule.name) != train.schedule.name:
            experiment = dataclasses.replace(experiment, train=dataclasses.replace(train, schedule=Schedule()))
        return dataclasses.replace(
            self, experiment=replaced(experiment, read), evaluation=replaced(self.evaluation, read)
        )


@dataclasses.dataclass(frozen=True)
class TrialPlans:
    """The plans of all trials: the first trains the user's own settings, the others train settings from the space.

    `epoch_rows` is the number of training examples.
    """

    own: TrialPlan
    space: Space
    epoch_rows: int

    def of(self, texts: Mapping[str, str] | None) -> TrialPlan:
        """Returns the plan of a trial with these values by flag; None for the user's settings, in the first trial.

        All trials except the first evaluate after the same numbers of examples.

        Raises:
          UserError: the settings are invalid.
        """
        if texts is None:
            plan = self._first()
        else:
            recipe = {"recipe": "none"} if self.own.experiment.model.recipe == _BY_THE_DATA else {}
            plan = self.own.with_flags({**recipe, **self.space.fixed(self.own.given), **texts})
            plan = dataclasses.replace(plan, evaluation=self._evaluation(plan.evaluation, plan.step_rows))
        check_training(plan.experiment, plan.evaluation)
        return plan

    def _first(self) -> TrialPlan:
        """Returns the plan of the first trial: the user's settings, with evaluations if they have none."""
        own = self.own
        if own.experiment.model.recipe == _BY_THE_DATA:
            chosen = choices(Facts(rows=self.epoch_rows, has_validation=True))
            if any("best_metric" in each.values and not each.is_replaced(own.given) for each in chosen):
                return own
        evaluation = dataclasses.replace(own.evaluation, best_metric=own.metric)
        if not evaluation.evaluates:
            evaluation = dataclasses.replace(evaluation, every_n_epochs=1)
        return dataclasses.replace(own, evaluation=evaluation)

    def _evaluation(self, evaluation: EvaluationConfig, step_rows: int) -> EvaluationConfig:
        evaluation = dataclasses.replace(evaluation, best_metric=self.own.metric)
        if evaluation.every_n_epochs:
            return evaluation
        steps = self.own.evaluation.every_n_steps
        rows = steps * self.own.step_rows if steps else self.epoch_rows / _EVALUATIONS
        return dataclasses.replace(evaluation, every_n_steps=max(round(rows / step_rows), 1))

    def fingerprint(self) -> str:
        """Returns the name of the study, which is the same for equal settings and spaces on any host."""
        own = alike(self.own.experiment) | alike(self.own.evaluation) | alike(self.own.metrics)
        known = {name: value for name, value in own.items() if name not in (*_OF_A_TRIAL, *_PERIODS)}
        given = sorted(self.own.given & set(known))
        text = json.dumps([known, given, self.space.to_dict(), self.epoch_rows], sort_keys=True)
        return f"{self.own.experiment.model.model}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def trial_flags(plan: TrialPlan, model_dir: str) -> list[str]:
    """Returns the lines of a trial's flagfile, with which only the best and the last checkpoint are kept."""
    own = {"save_checkpoints_steps": "0", "summary_steps": "0", "model_dir": model_dir}
    return _lines(plan, (*_OF_A_TRIAL, *_PERIODS), **own)


def found_flags(plan: TrialPlan, model_dir: str) -> list[str]:
    """Returns the lines of a flagfile with a trial's settings."""
    return _lines(plan, ("model_dir", "resume_from"), model_dir=model_dir)


def _lines(plan: TrialPlan, without: Collection[str], **own: str) -> list[str]:
    """Returns the lines of a flagfile with the flags of a plan, except those in `without`, and with `own` flags."""
    texts = {name: text for name, text in plan.texts().items() if name not in without}
    return [f"--{name}={text}" for name, text in (texts | own).items()]
