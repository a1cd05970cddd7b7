"""What settings suit data of a size: the rule of `data_recipe`, free of any file."""

import dataclasses
from collections.abc import Collection
from typing import Any

MIDDLE_ROWS, LARGE_ROWS = 30_000, 1_000_000


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is known before a training begins.

    Attributes:
      rows: examples of the training data.
      rarer: examples of the rarer outcome, positive or negative; None if they are not counted.
      keys: distinct keys of all features; None if they are not counted.
      has_validation: whether there is --eval_data.
      has_sequences: whether a feature is a sequence.
      several_labels: whether the model predicts several labels.
      model: name of the model.
      own_params: names of the model's params.
    """

    rows: int
    rarer: int | None = None
    keys: int | None = None
    has_validation: bool = False
    has_sequences: bool = False
    several_labels: bool = False
    model: str = ""
    own_params: tuple[str, ...] = ()

    @property
    def size(self) -> str:
        """`small`, `middle` or `large`."""
        return "large" if self.rows > LARGE_ROWS else "middle" if self.rows > MIDDLE_ROWS else "small"

    def line(self) -> str:
        """Returns the facts as a text."""
        known = [f"{self.rows:,} rows"]
        known += [f"{self.rarer:,} of the rarer label"] if self.rarer is not None else []
        known += [f"{self.keys:,} distinct keys"] if self.keys is not None else []
        return ", ".join([*known, "validation data" if self.has_validation else "no validation data"])


@dataclasses.dataclass(frozen=True)
class Choice:
    """Flags that are chosen together.

    Attributes:
      values: by flag.
      why: the reason.
      fact: the fact of the data that decided.
      others: further flags that replace this choice if they are given.
    """

    values: dict[str, Any]
    why: str
    fact: str
    others: tuple[str, ...] = ()

    @property
    def flags(self) -> set[str]:
        """The flags that replace this choice if one of them is given."""
        return {*self.values, *self.others}

    def is_replaced(self, given: Collection[str]) -> bool:
        """Returns whether a given flag replaces the choice."""
        return not self.flags.isdisjoint(given)


def choices(facts: Facts) -> list[Choice]:
    """Returns what suits data with these facts; [] keeps the fixed defaults."""
    if facts.size == "large":
        return []
    return [_batch(facts), _length(facts), _rates(facts), *_regularization(facts), *_of_the_model(facts)]


def _rows(facts: Facts) -> str:
    return f"{facts.rows:,} rows"


def _batch(facts: Facts) -> Choice:
    size = 128 if facts.size == "small" else 512
    steps = -(-facts.rows // size)
    return Choice({"batch_size": size}, f"{steps:,} steps an epoch, not {-(-facts.rows // 1024):,}", _rows(facts))


def _length(facts: Facts) -> Choice:
    others = ("max_steps", "eval_steps", "lr_schedule", "embedding_lr_schedule", "decay_rate", "plateau_patience")
    if not facts.has_validation:
        epochs = 8 if facts.size == "small" else 4
        why = "several passes, since one is too few; the learning rates fall to 0"
        values = {"epochs": epochs, "lr_schedule": "linear", "embedding_lr_schedule": "same"}
        return Choice(values, why, f"{_rows(facts)}, no validation data", ("decay_steps", *others))
    metric = "loss" if facts.several_labels else "auc"
    values = {
        **{"epochs": 40, "eval_epochs": 1, "best_metric": metric, "early_stopping_patience": 3},
        **{"lr_schedule": "plateau", "plateau_patience": 1, "decay_rate": 0.2, "embedding_lr_schedule": "same"},
    }
    why = "passes until the validation stops to improve, with rates that fall first; the best one is kept"
    return Choice(values, why, "validation data", others)


def _rates(facts: Facts) -> Choice:
    values = {"optimizer": "adam", "learning_rate": 1e-3}
    values |= {"embedding_optimizer": "adam", "embedding_learning_rate": 1e-3, "embedding_l2": 0.01}
    others = ("optimizer_params", "embedding_optimizer_params", "embedding_initial_accumulator", "weight_decay")
    why = "steps of full size from the first on: Adagrad's begin small and take millions of rows"
    return Choice(values, why, _rows(facts), others)


def _regularization(facts: Facts) -> list[Choice]:
    why = "a network of this size learns so few rows by heart"
    dropout = 0.3 if facts.size == "small" else 0.1
    l2 = 0.001 if facts.size == "small" else 0.0
    return [Choice({"dropout": dropout}, why, _rows(facts)), Choice({"l2": l2}, why, _rows(facts))]


def _of_the_model(facts: Facts) -> list[Choice]:
    return []
