"""What the recipe `data` chooses for data of a given size; `data_recipe` finds the facts of the data."""

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.data.input_schemes import is_stream
from ctr_trainer.settings.by_flag import by_flag, replaced
from ctr_trainer.settings.training_configs import EvaluationConfig

NAME = "data"
# The limits of the sizes by which the recipe `data` chooses, in rows.
MIDDLE_ROWS, LARGE_ROWS = 50_000, 1_000_000
_TINY_ROWS = 2_000
# With more keys, catching up on the steps that rows missed would slow down the training.
_MOST_KEYS = 20_000
# Whoever gives one of these flags decides where the rows are or how they are trained.
_OF_ROWS = ("embedding_optimizer", "embedding_service", "service_shards", "row_copies", "sync_steps")
# Fewer steps between two evaluations do not show an improvement; those of an ensemble of networks are smaller.
_STEPS_BETWEEN, _STEPS_OF_ENSEMBLE = 20, 100
_BATCH = {"small": 128, "middle": 512}
PATIENCE, DECAY_RATE = "lr_schedule_params=patience", "lr_schedule_params=decay_rate"
PLATEAU = {"lr_schedule": "plateau", PATIENCE: 1, DECAY_RATE: 0.2}
OF_EVALUATIONS = ("eval_steps", "eval_epochs", "best_metric", "early_stopping_patience", *PLATEAU)


@dataclasses.dataclass(frozen=True)
class Facts:
    """The facts that are known before a training begins; None for a number that is not counted.

    `keys` are the distinct keys of all features. `has_logloss` is whether the model surely has that metric: one of this
    package, and a single label. `has_pieces` is whether there are numbers in pieces. `can_share` is whether the workers
    can share rows, all trained and without limits, in the memory of one host.
    """

    rows: int
    keys: int | None = None
    has_validation: bool = False
    has_logloss: bool = True
    has_pieces: bool = False
    can_share: bool = False

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

    @property
    def is_of_numbers(self) -> bool:
        """Whether numbers carry the signal, so that a model of embeddings is not the best."""
        return self.has_pieces and (self.keys == 0 or (self.size == "small" and not self.has_rare_keys))

    @property
    def moves_all_rows(self) -> bool:
        """Whether every row is to take every step, which needs rows that are not in a service."""
        return self.size == "middle" and self.can_share and 0 < (self.keys or 0) <= _MOST_KEYS

    def line(self) -> str:
        known = [f"{self.rows:,} rows"]
        known += [f"{self.keys:,} distinct keys"] if self.keys is not None else []
        return ", ".join([*known, "validation data" if self.has_validation else "no validation data"])


def choices(facts: Facts, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns, by flag, the choices for data with these facts and given flags, and notes; {} for the fixed defaults."""
    if facts.size == "large":
        return {}, []
    if not given.keys().isdisjoint(("model", "model_params", "warm_start")):
        facts = dataclasses.replace(facts, has_pieces=False)
    decided = [name for name in given if name in _OF_ROWS or name.startswith("embedding_optimizer_params=")]
    facts = dataclasses.replace(facts, can_share=facts.can_share and not decided)
    length, notes = length_of(facts, given), []
    if "max_steps" in given:  # A length of its own.
        notes, length = _notes("max_steps", {*length} - {*given}), {}
    if facts.size == "middle" and not facts.moves_all_rows:
        cause = f"several hosts, [[limits]], frozen rows, or unknown keys or more than {_MOST_KEYS:,}"
        why = f"--{decided[0]}" if decided else cause
        notes.append(f"not embedding_optimizer=dense_adagrad, because of {why}")
    dense = {"optimizer": "adam", "learning_rate": 1e-3}  # Makes full steps from the first one on.
    values = {"batch_size": _BATCH[facts.size], **length, **dense, **_row_rate(facts), **_regularization(facts)}
    fitting, more = fit(values, given)
    return fitting, notes + more


def fit(values: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns the choices that are not given and make sense with the given flags, and a note on each that does not."""
    left, notes = {name: value for name, value in values.items() if name not in given}, list[str]()
    for flag, names in _excluded(values, given):
        notes += _notes(flag, [name for name in names if name in left])
        left = {name: value for name, value in left.items() if name not in names}
    return left, notes


def _notes(flag: str, names: Iterable[str]) -> list[str]:
    return [f"not {', '.join(sorted(names))}, because of --{flag}"] if names else []


def _excluded(values: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields a given flag, and the choices that make no sense with it."""
    for flag, rate in (("optimizer", "learning_rate"), ("embedding_optimizer", "embedding_learning_rate")):
        of_it = tuple(name for name in values if name.startswith(f"{flag}_params="))
        if flag in values and given.get(flag, values[flag]) != values[flag]:
            yield flag, (rate, *of_it)
        # Without the flag itself, only params of its fixed default are accepted.
        own = [name for name in given if name.startswith(f"{flag}_params=")]
        if own and flag not in given and values.get(flag) == "adam":
            yield own[0], (flag, rate)
    if given.get("eval_steps"):
        yield "eval_steps", ("eval_epochs",)
    if given.get("eval_epochs"):
        yield "eval_epochs", ("eval_steps",)
    if values.get("lr_schedule") == "plateau":
        if given.get("lr_schedule", "plateau") != "plateau":
            yield "lr_schedule", (PATIENCE, DECAY_RATE)
        if "lr_schedule_params=decay_steps" in given:
            yield "lr_schedule_params=decay_steps", tuple(PLATEAU)
        if 0 < given.get("early_stopping_patience", 0) <= int(values.get(PATIENCE, 1)) and PATIENCE not in given:
            yield "early_stopping_patience", tuple(PLATEAU)
    if given.get("warm_start"):  # It has its own network.
        yield "warm_start", ("hidden_units",)


def length_of(facts: Facts, given: Mapping[str, Any]) -> dict[str, Any]:
    """Chooses passes until validation stops to improve; without evaluations, rates that fall to 0."""
    steps = _STEPS_OF_ENSEMBLE if facts.is_of_numbers and not facts.is_tiny else _STEPS_BETWEEN
    passes = -(-steps // -(-facts.rows // _BATCH[facts.size]))
    periods = [given[name] for name in ("eval_steps", "eval_epochs") if name in given]
    if not facts.has_validation or not given.get("best_metric", "auc") or (periods and not any(periods)):
        return {"epochs": _epochs_unseen(facts, passes), "lr_schedule": "linear", "embedding_lr_schedule": "same"}
    # Epochs of nearly the same AUC differ in calibration, which only log loss measures.
    metric = "logloss" if facts.has_logloss else "loss"
    patience = 3 if facts.is_of_numbers else 1  # An ensemble of networks still improves after a bad epoch.
    return {
        **{"epochs": 40 * passes, "eval_epochs": passes, "best_metric": metric},
        "early_stopping_patience": 2 * int(given.get(PATIENCE, patience)) + 1,
        **{**PLATEAU, PATIENCE: patience},
        "embedding_lr_schedule": "same",
    }


def _epochs_unseen(facts: Facts, passes: int) -> int:
    """Returns the number of epochs of a training without validation data to end it."""
    # The best number of steps grows with the square root of the number of rows, so the number of epochs decreases with
    # it. If keys occur only once, that number of epochs would memorize every example.
    if facts.size != "small":
        return 3
    if facts.keys is None or facts.keys_occur_once:
        return 6 * passes
    return max(6, round((800 if facts.has_rare_keys else 1000) / math.sqrt(facts.rows)))


def _row_rate(facts: Facts) -> dict[str, Any]:
    """Chooses smaller steps of the rows, the fewer examples each key has."""
    values = {"embedding_optimizer": "adagrad", "embedding_learning_rate": 0.02, "embedding_l2": 1e-3}
    if facts.moves_all_rows:  # The L2 of the whole table keeps rows of rare keys from memorizing their examples.
        values |= {"embedding_service": "shared", "embedding_optimizer": "dense_adagrad", "embedding_l2": 1e-2}
    if facts.keys_occur_once:
        return {**values, "embedding_optimizer_params=initial_accumulator": 1e-2 if facts.is_tiny else 1e-3}
    if facts.is_near_linear:
        return {"embedding_optimizer": "adam", "embedding_learning_rate": 1e-3, "embedding_l2": 1e-2}
    return {**values, "embedding_optimizer_params=initial_accumulator": 1e-5}


def _regularization(facts: Facts) -> dict[str, Any]:
    """Chooses more dropout, L2 and a smaller network, the fewer rows a network could learn by heart."""
    # TabM needs neither L2 nor much dropout, because its members differ.
    if facts.is_of_numbers:
        tabm = {"model": "tabm", "model_params": ("members=8",)}
        return {**tabm, "hidden_units": (256, 128), "dropout": 0.1, "l2": 0.0}
    dropout, l2 = (0.3, 0.002) if facts.size == "small" else (0.1, 0.0)
    return (
        {"dropout": 0.5, "l2": l2, "hidden_units": (128,)} if facts.is_near_linear else {"dropout": dropout, "l2": l2}
    )


def decides(experiment: Experiment) -> bool:
    """Returns whether this recipe chooses defaults of an experiment."""
    return experiment.model.recipe == NAME and not is_stream(experiment.data.train_data)


def given_values(given: Collection[str], experiment: Experiment, evaluation: EvaluationConfig) -> dict[str, Any]:
    """Returns the values of the given flags."""
    return {name: value for name, value in (by_flag(experiment) | by_flag(evaluation)).items() if name in given}


def supposed(
    given: Collection[str], experiment: Experiment, evaluation: EvaluationConfig
) -> tuple[Experiment, EvaluationConfig]:
    """Returns the settings with what suits small data, to check them before the data is read."""
    if not decides(experiment):
        return experiment, evaluation
    facts = Facts(rows=MIDDLE_ROWS, has_validation=bool(experiment.data.eval_data))
    values, _ = choices(facts, given_values(given, experiment, evaluation))
    return replaced(experiment, values), replaced(evaluation, values)
