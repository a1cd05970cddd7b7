"""What the recipe `data` chooses for data of a given size; `data_recipe` finds the facts of the data."""

import dataclasses
import math
from collections.abc import Collection
from typing import Any

# The limits of the sizes by which the recipe `data` chooses, in rows.
MIDDLE_ROWS, LARGE_ROWS = 50_000, 1_000_000
_TINY_ROWS = 2_000
_RARE = 1_500  # With fewer examples of an outcome, the validation AUC is too noisy to use.
_STEPS_BETWEEN = 20  # Fewer steps between two evaluations do not show an improvement.
_BATCH = {"small": 128, "middle": 512}


@dataclasses.dataclass(frozen=True)
class Facts:
    """The facts that are known before a training begins; None for a number that is not counted.

    `rarer` are the examples of the rarer outcome, `keys` the distinct keys of all features.
    """

    rows: int
    rarer: int | None = None
    keys: int | None = None
    has_validation: bool = False
    several_labels: bool = False

    @property
    def size(self) -> str:
        return "large" if self.rows > LARGE_ROWS else "middle" if self.rows > MIDDLE_ROWS else "small"

    @property
    def is_tiny(self) -> bool:
        """Whether the data has too few rows for a network to clearly outperform a linear model."""
        return self.rows <= _TINY_ROWS

    @property
    def has_rare_keys(self) -> bool:
        """Whether small data is known to have more than one key per ten rows."""
        return self.size == "small" and self.keys is not None and 10 * self.keys > self.rows

    @property
    def keys_occur_once(self) -> bool:
        """Whether small data is known to have more than three keys per row, most of which occur once."""
        return self.size == "small" and self.keys is not None and self.keys > 3 * self.rows

    @property
    def is_near_linear(self) -> bool:
        """Whether a large network would memorize these rows."""
        return self.is_tiny or self.has_rare_keys

    def line(self) -> str:
        known = [f"{self.rows:,} rows"]
        known += [f"{self.rarer:,} of the rarer label"] if self.rarer is not None else []
        known += [f"{self.keys:,} distinct keys"] if self.keys is not None else []
        return ", ".join([*known, "validation data" if self.has_validation else "no validation data"])


@dataclasses.dataclass(frozen=True)
class Choice:
    """Flags that are chosen together. If the user gives one of them or of `others`, the whole choice is dropped."""

    values: dict[str, Any]
    others: tuple[str, ...] = ()

    def is_replaced(self, given: Collection[str]) -> bool:
        return not {*self.values, *self.others}.isdisjoint(given)


def choices(facts: Facts) -> list[Choice]:
    """Returns the choices for data with these facts; [] keeps the fixed defaults."""
    if facts.size == "large":
        return []
    # Optimizers that make full steps from the first one on.
    dense = Choice({"optimizer": "adam", "learning_rate": 1e-3}, ("optimizer_params",))
    return [
        Choice({"batch_size": _BATCH[facts.size]}),
        _length(facts),
        dense,
        Choice(_row_rate(facts), ("embedding_optimizer_params",)),
        *_regularization(facts),
    ]


def _length(facts: Facts) -> Choice:
    """Chooses passes until validation stops to improve; without validation data, rates that fall to 0."""
    others = ("max_steps", "eval_steps", "lr_schedule", "embedding_lr_schedule", "lr_schedule_params")
    passes = -(-_STEPS_BETWEEN // -(-facts.rows // _BATCH[facts.size]))
    if not facts.has_validation:
        values = {"epochs": _epochs_unseen(facts, passes), "lr_schedule": "linear", "embedding_lr_schedule": "same"}
        return Choice(values, others)
    is_rare = facts.rarer is not None and facts.rarer < _RARE
    metric = "loss" if facts.several_labels else "logloss" if is_rare else "auc"
    values = {
        **{"epochs": 40 * passes, "eval_epochs": passes, "best_metric": metric, "early_stopping_patience": 3},
        **{"lr_schedule": "plateau", "lr_schedule_params=patience": 1, "lr_schedule_params=decay_rate": 0.2},
        "embedding_lr_schedule": "same",
    }
    return Choice(values, others)


def _epochs_unseen(facts: Facts, passes: int) -> int:
    """Returns the number of epochs of a training without validation data to end it.

    The best number of steps grows with the square root of the number of rows, so the number of epochs decreases with
    it. If keys occur only once, that number of epochs would memorize every example.
    """
    if facts.size != "small":
        return 3
    if facts.keys is None or facts.keys_occur_once:
        return 6 * passes
    return max(6, round((800 if facts.has_rare_keys else 1000) / math.sqrt(facts.rows)))


def _row_rate(facts: Facts) -> dict[str, Any]:
    """Chooses smaller steps of the rows, the fewer examples each key has."""
    values = {"embedding_optimizer": "adagrad", "embedding_learning_rate": 0.02, "embedding_l2": 1e-3}
    if facts.keys_occur_once:
        return {**values, "embedding_optimizer_params=initial_accumulator": 1e-2 if facts.is_tiny else 1e-3}
    if facts.is_near_linear:
        return {"embedding_optimizer": "adam", "embedding_learning_rate": 1e-3, "embedding_l2": 1e-2}
    return {**values, "embedding_optimizer_params=initial_accumulator": 1e-5}


def _regularization(facts: Facts) -> list[Choice]:
    """Chooses more dropout, L2 and a smaller network, the fewer rows a network could learn by heart."""
    dropout, l2 = (0.3, 0.002) if facts.size == "small" else (0.1, 0.0)
    if not facts.is_near_linear:
        return [Choice({"dropout": dropout}), Choice({"l2": l2})]
    # A warm start has its own network.
    return [Choice({"dropout": 0.5}), Choice({"l2": l2}), Choice({"hidden_units": (128,)}, ("warm_start",))]
