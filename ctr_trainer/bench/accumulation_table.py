"""What `bench accumulation` found, as tables.

At equal examples, K batches a step make a K-th of the optimizer steps; at equal steps they read K times the examples.
With v_K(n) the validation AUC after n steps of K batches, and S the steps of one batch,

    v_K(S/K) - v_1(S)  =  [v_K(S) - v_1(S)]  +  [v_K(S/K) - v_K(S)]

the change at equal examples is that by larger batches, which is the change at equal steps, plus that by fewer steps.
"""

import dataclasses
from typing import Any

from ctr_trainer.bench.report import Figure, cell, figure, format_table, gains
from ctr_trainer.bench.settings import ONE_ROUND

EXAMPLES, STEPS, FEWER_STEPS = "examples", "steps", "fewer_steps"
# What all rows of a table have as many of.
STEP_TITLES = {EXAMPLES: "Equal examples", STEPS: "Equal optimizer steps"}
_CHANGES = {EXAMPLES: "equal examples", STEPS: "equal steps: larger batches", FEWER_STEPS: "fewer steps"}
_BEST = "best_auc"
_OF_RUN = ("learning_rate", "training_auc", "accuracy", "auc", "logloss", "copc")
# Heading, figure and format.
_COLUMNS = (
    ("learning rate", "learning_rate", "g"),
    ("seconds", "seconds", ",.1f"),
    ("with evaluations", "seconds_with_evaluations", ",.1f"),
    ("examples/s", "together", ",.0f"),
    ("over the row above", "gain_percent", "+.0f"),
    ("training AUC", "training_auc", ".4f"),
    ("accuracy", "accuracy", ".4f"),
    ("validation AUC", "auc", ".4f"),
    ("best in the run", _BEST, ".4f"),
    ("log loss", "logloss", ".4f"),
    ("COPC", "copc", ".3f"),
)
_NOTES = (
    "Seconds are for all examples of a row at its examples/s, without and with the run's evaluations. Over the row "
    "above: by how many percent the examples/s are more. The batch size is that of all workers in an optimizer step. "
    "Training AUC is of the training examples, each as it came.",
    "--scale_lr=linear_batches and sqrt_batches let the learning rates grow with the batches of a step.",
    "*: its best AUC is the best so far, of this row and those above it.",
)
_ABOUT_CHANGES = (
    "Equal examples = larger batches + fewer steps. Larger batches: as many steps as one batch a step makes, each of K "
    "batches. Fewer steps: a K-th of these, against all of them."
)


@dataclasses.dataclass(frozen=True)
class AccumulationSetting:
    """What one row measures.

    Attributes:
      batches: of each worker in an optimizer step.
      steps, warmup: optimizer steps that count for the speed, and those before them that do not.
      batch_examples: examples of a batch of all workers.
    """

    batches: int
    steps: int
    warmup: int
    batch_examples: int

    @property
    def optimizer_steps(self):
        return self.steps + self.warmup

    @property
    def batch_size(self) -> int:
        """Examples of all workers in an optimizer step."""
        return self.batches * self.batch_examples

    @property
    def examples(self):
        """Examples of all workers in all steps."""
        return self.optimizer_steps * self.batches * self.batch_examples

    @property
    def name(self):
        return f"{self.batches} batch{'es' * (self.batches > 1)} a step, {self.optimizer_steps:,} steps"


@dataclasses.dataclass(frozen=True)
class Row:
    """What was found of a setting.

    Attributes:
      setting: `AccumulationSetting`.
      figures: dict of Figures, see `summarize`; `gain_percent`, the examples/s over those of the row before.
      evaluations: by round, list of dicts of `step` and `auc`.
      best_so_far: whether its best AUC is above that of all rows before it, by the medians.
    """

    setting: AccumulationSetting
    figures: dict[str, Figure | None]
    evaluations: list
    best_so_far: bool

    def to_dict(self):
        """-> JSON-able dict."""
        return {
            "accumulation_steps": self.setting.batches,
            "batch_size": self.setting.batch_size,
            "optimizer_steps": self.setting.optimizer_steps,
            "examples": self.setting.examples,
            **{name: value and value.to_dict() for name, value in self.figures.items()},
            "best_so_far": self.best_so_far,
            "evaluations": self.evaluations,
        }


def rows(settings, runs):
    """-> list of `Row` of the settings that did not fail.

    Args:
      settings: list of `AccumulationSetting`.
      runs: by a setting's name, a list of the ranks' results a round.
    """
    found, best = [], -1.0
    for setting in settings:
        if setting.name in runs:
            rounds = runs[setting.name]
            figures = summarize(rounds, setting.examples)
            figures["gain_percent"] = gains(found[-1].figures["together"] if found else None, figures["together"])
            median = figures[_BEST].median
            found.append(Row(setting, figures, [ranks[0]["evaluations"] for ranks in rounds], median > best))
            best = max(best, median)
    return found


def summarize(rounds: list[list[dict[str, Any]]], examples: int) -> dict[str, Figure | None]:
    """Returns the figures of a row.

    Args:
      rounds: a list of the ranks' results, a round.
      examples: that a run trains on.

    Returns:
      dict of `together` (examples/s), `seconds` for all examples at that rate, `seconds_with_evaluations`,
      `learning_rate`, `training_auc`, and on the validation data `best_auc` of all evaluations, and `auc`, `accuracy`,
      `logloss` and `copc` of the last.
    """
    rates = [sum(rank["examples_per_sec"] for rank in ranks) for ranks in rounds]
    firsts = [ranks[0] for ranks in rounds]
    return {
        "seconds": figure(examples / rate for rate in rates),
        "seconds_with_evaluations": figure(
            examples / rate + first["evaluation_seconds"] for rate, first in zip(rates, firsts, strict=True)
        ),
        "together": figure(rates),
        _BEST: figure(max(each["auc"] for each in first["evaluations"]) for first in firsts),
        **{name: figure(first[name] for first in firsts) for name in _OF_RUN},
    }


def auc_changes(aucs):
    """-> by batches a step, dict of Figures of the change of the validation AUC against one batch of the same round: by
    what is equal, and where both are known by `fewer_steps`.

    Args:
      aucs: by what is equal, dict of batches a step -> Figure.
    """
    found = {}
    for equal, own in aucs.items():
        for batches in sorted(own if 1 in own else ()):
            if batches > 1:
                found.setdefault(batches, {})[equal] = _difference(own[batches], own[1])
    for own in found.values():
        if EXAMPLES in own and STEPS in own:
            own[FEWER_STEPS] = _difference(own[EXAMPLES], own[STEPS])
    return found


def _difference(first, second):
    return figure(a - b for a, b in zip(first.values, second.values, strict=True))


def lines(tables, changes, rounds):
    """-> lines: a table of each that is equal, then the changes of the AUC.

    Args:
      tables: by what is equal, list of `Row`.
      changes: of `auc_changes`.
      rounds: how many.
    """
    text = []
    for equal, own in tables.items():
        headings = ["batches a step", "batch size", "steps", "examples", *(heading for heading, *_ in _COLUMNS)]
        text += ["", f"{STEP_TITLES[equal]}:", *format_table(headings, [_cells(row) for row in own])]
    text += ["", *_NOTES]
    if rounds == 1:
        return [*text, ONE_ROUND]
    names = [name for name in _CHANGES if any(name in own for own in changes.values())]
    cells = [[str(k), *(cell(own.get(name), "+.4f") for name in names)] for k, own in changes.items()]
    if cells:
        text += ["", "Change of the validation AUC against one batch a step, in the same round:"]
        text += format_table(["batches a step", *(_CHANGES[name] for name in names)], cells)
    return [*text, _ABOUT_CHANGES] if FEWER_STEPS in names else text


def _cells(row):
    """-> the texts of a row."""
    setting = row.setting
    numbers = (setting.batch_size, setting.optimizer_steps, setting.examples)
    cells = [str(setting.batches), *(f"{number:,}" for number in numbers)]
    for _, name, form in _COLUMNS:
        text = cell(row.figures[name], form)
        cells.append(text + (" *" if row.best_so_far else "  ") if name == _BEST else text)
    return cells
