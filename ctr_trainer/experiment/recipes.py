"""Presets of flags: one word sets what another library's training loop does, and any given flag overrides it."""

from collections.abc import Collection, Mapping
from typing import Any

# For each recipe the values of its flags. FuxiCTR's are from its `fuxictr/pytorch/models/rank_model.py` and from its
# models' configurations.
RECIPES: dict[str, dict[str, str]] = {
    "data": {},  # `data_recipe` decides when the data are known.
    "none": {},
    "bars": {
        **{"optimizer": "adam", "learning_rate": "0.001", "embedding_optimizer": "dense_adam"},
        **{"embedding_learning_rate": "0.001", "embedding_lr_schedule": "same", "embedding_stddev": "0.0001"},
        **{"clip_norm": "10", "batch_norm_momentum": "0.9", "batch_norm_epsilon": "1e-05"},
        **{"lr_schedule": "plateau", "decay_rate": "0.1", "plateau_patience": "1"},
        **{"eval_epochs": "1", "best_metric": "auc", "early_stopping_patience": "2"},
        **{"epochs": "100", "shuffle_buffer": "1000000"},
    },
}
# By flag, another one that replaces it if given.
REPLACED_BY = {
    **{"decay_rate": "lr_schedule", "plateau_patience": "lr_schedule"},
    **{"eval_epochs": "eval_steps", "epochs": "max_steps"},
}


def flags_of(recipe: str, given: Collection[str]) -> dict[str, str]:
    """Returns what a recipe sets, by flag, without what given flags replace."""
    values = RECIPES[recipe]
    return {name: text for name, text in values.items() if not {name, REPLACED_BY.get(name)} & set(given)}


def line(recipe: str, values: Mapping[str, Any]) -> str:
    """Returns the log line about what a recipe has set in the values of a run, and what is there in its place."""
    if not RECIPES[recipe]:
        return ""
    own = {name for name, text in RECIPES[recipe].items() if text_of(values.get(name)) != text}
    sets = ", ".join(f"{name}={text}" for name, text in RECIPES[recipe].items() if name not in own)
    others = ", ".join(f"{name}={text_of(values.get(name))}" for name in RECIPES[recipe] if name in own)
    return f"recipe {recipe} sets {sets}{f'; in place of its values there are {others}' if others else ''}"


def text_of(value: Any) -> str:
    """Returns a value as a text of the log."""
    if isinstance(value, tuple | list):
        return ",".join(map(text_of, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
