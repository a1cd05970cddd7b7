"""The plans of the trials: the user's settings with some flags changed, as flags of `train`."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

from ctr_trainer.commands.experiment import flags
from ctr_trainer.commands.experiment.checks import check_training
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.commands.experiment.recipes import NAME, Facts, choices, given_values, supposed
from ctr_trainer.commands.studies.space import Space
from ctr_trainer.settings.by_flag import alike, by_flag, text_of
from ctr_trainer.settings.setting import Settings
from ctr_trainer.settings.training_configs import EvaluationConfig
from ctr_trainer.system.messages.errors import UserError

GROUPS = (Experiment, EvaluationConfig)
# Settings that each trial sets itself. A trial needs only its best evaluation, so it saves no periodic checkpoints.
_OF_A_TRIAL = ("model_dir", "resume_from", "publish", "log_format", "summary_steps", "track")
_PERIODS = ("save_checkpoints_steps", "save_checkpoints_secs")
# Number of evaluations per epoch if the user does not set it.
_EVALUATIONS = 2


# Flags that name one of several kinds; another kind has other settings, which FLAG_params gives.
_KINDS = ("optimizer", "embedding_optimizer", "lr_schedule")


@dataclasses.dataclass(frozen=True)
class TrialPlan:
    """The settings of one training: the texts of its flags, in which `model_params=NAME` is one of the model's."""

    texts: Mapping[str, str]

    @staticmethod
    def of(given: Collection[str], *groups: Settings) -> "TrialPlan":
        """Returns the plan with the values of the given flags."""
        values = {name: value for group in groups for name, value in by_flag(group).items()}
        return TrialPlan({name: text_of(name, value) for name, value in values.items() if name in given})

    @functools.cached_property
    def groups(self) -> tuple[Experiment, EvaluationConfig]:
        """The settings, parsed like the command line; raises UserError for an unknown flag or an invalid value."""
        experiment, evaluation = flags.parse(GROUPS, _lines(self.texts))
        return experiment, evaluation

    @property
    def experiment(self) -> Experiment:
        return self.groups[0]

    @property
    def evaluation(self) -> EvaluationConfig:
        return self.groups[1]

    @property
    def step_rows(self) -> int:
        """The number of examples per optimizer step."""
        return self.experiment.data.batch_size * self.experiment.train.accumulation_steps

    def with_flags(self, texts: Mapping[str, str]) -> "TrialPlan":
        """Returns the plan with other flags, without the settings of an optimizer or a schedule that they replace."""
        if unknown := sorted({*texts} & {*_OF_A_TRIAL}):
            raise UserError(f"{unknown[0]}: this flag cannot differ between trials; remove it from the space")
        if "model_params" in self.texts and "model_params" in texts:
            texts = {**texts, "model_params": f"{self.texts['model_params']},{texts['model_params']}"}
        now = by_flag(self.experiment)
        dropped = tuple(f"{flag}_params=" for flag in _KINDS if texts.get(flag, now[flag]) != now[flag])
        kept = {name: text for name, text in self.texts.items() if not name.startswith(dropped)}
        return TrialPlan({**kept, **texts})


@dataclasses.dataclass(frozen=True)
class TrialPlans:
    """The plans of all trials: the first trains the user's own settings, the others train settings from the space.

    `data` are descriptions of the training and evaluation data: values of other data must not be compared.
    """

    own: TrialPlan
    space: Space
    facts: Facts
    data: tuple[str, ...] = ()

    @property
    def metric(self) -> str:
        """The metric by which trials are compared; the default also measures the calibration, which AUC does not."""
        return self.own.evaluation.best_metric or ("logloss" if self.facts.has_logloss else "loss")

    def of(self, texts: Mapping[str, str] | None) -> TrialPlan:
        """Returns the plan of a trial with these values by flag; None for the user's settings, in the first trial.

        All trials except the first evaluate after the same numbers of examples. Raises UserError for invalid settings.
        """
        if texts is None:
            plan = self._first()
        else:
            chosen = self._chosen()
            recipe = {"recipe": "none"} if self.own.experiment.model.recipe == NAME else {}
            recipe |= {name: text_of(name, chosen[name]) for name in ("model", "model_params") if name in chosen}
            plan = self.own.with_flags({**recipe, **self.space.fixed(self.own.texts), **texts})
            plan = plan.with_flags({"best_metric": self.metric, **self._period(plan)})
        check_training(*supposed(plan.texts, plan.experiment, plan.evaluation))
        return plan

    def _first(self) -> TrialPlan:
        """Returns the plan of the first trial: the user's settings, with evaluations if they have none."""
        own = self.own
        if "best_metric" in self._chosen():
            return own
        return own.with_flags(
            {"best_metric": self.metric, **({} if own.evaluation.evaluates else {"eval_epochs": "1"})}
        )

    def _chosen(self) -> dict[str, Any]:
        """Returns what the recipe chooses for the first trial, by flag."""
        own = self.own
        if own.experiment.model.recipe != NAME:
            return {}
        return choices(self.facts, given_values(own.texts, own.experiment, own.evaluation))[0]

    def _period(self, plan: TrialPlan) -> dict[str, str]:
        """Returns the flag of the steps between two evaluations, unless the plan counts epochs."""
        if plan.evaluation.every_n_epochs:
            return {}
        steps = self.own.evaluation.every_n_steps
        rows = steps * self.own.step_rows if steps else self.facts.rows / _EVALUATIONS
        return {"eval_steps": str(max(round(rows / plan.step_rows), 1))}

    def fingerprint(self) -> str:
        """Returns the name of the study, which is the same for equal settings, spaces and data on any host."""
        own = {name: value for group in self.own.groups for name, value in alike(group).items()}
        known = {name: value for name, value in own.items() if name not in (*_OF_A_TRIAL, *_PERIODS)}
        given = sorted({*self.own.texts} & {*known})
        text = json.dumps([known, given, dataclasses.asdict(self.space), self.facts.rows, self.data], sort_keys=True)
        return f"{self.own.experiment.model.model}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def trial_flags(plan: TrialPlan, model_dir: str) -> list[str]:
    """Returns the lines of a trial's flagfile, with which only the best and the last checkpoint are kept."""
    texts = {name: text for name, text in plan.texts.items() if name not in (*_OF_A_TRIAL, *_PERIODS)}
    return _lines(texts | {"save_checkpoints_steps": "0", "summary_steps": "0", "model_dir": model_dir})


def found_flags(plan: TrialPlan) -> list[str]:
    """Returns the lines of a flagfile with a trial's settings, for a training in any `model_dir`."""
    return _lines({name: text for name, text in plan.texts.items() if name not in ("model_dir", "resume_from")})


def _lines(texts: Mapping[str, str]) -> list[str]:
    return [f"--{name}={text}" for name, text in texts.items()]
