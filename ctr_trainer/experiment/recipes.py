"""Presets of flags: one name sets the flags of another library's training loop, and any given flag overrides them."""

from collections.abc import Collection, Mapping
from typing import Any

# The values of each recipe by flag. FuxiCTR's values are from its `fuxictr/pytorch/models/rank_model.py` and from the
# configurations of its models.
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
# Flags that a recipe does not set if another flag, the value, is given.
REPLACED_BY = {
    **{"decay_rate": "lr_schedule", "plateau_patience": "lr_schedule"},
    **{"eval_epochs": "eval_steps", "epochs": "max_steps"},
}


def flags_of(recipe: str, given: Collection[str]) -> dict[str, str]:
    """Returns the values that a recipe sets, by flag, without those that given flags replace."""
    values = RECIPES[recipe]
    return {name: text for name, text in values.items() if not {name, REPLACED_BY.get(name)} & set(given)}


def line(recipe: str, values: Mapping[str, Any]) -> str:
    """Returns the log line that lists the values of a run that a recipe set, and the values that replace others."""
    if not RECIPES[recipe]:
        return ""
    own = {name for name, text in RECIPES[recipe].items() if text_of(values.get(name)) != text}
    sets = ", ".join(f"{name}={text}" for name, text in RECIPES[recipe].items() if name not in own)
    others = ", ".join(f"{name}={text_of(values.get(name))}" for name in RECIPES[recipe] if name in own)
    return f"recipe {recipe} sets {sets}{f'; in place of its values there are {others}' if others else ''}"


def text_of(value: Any) -> str:
    """Returns a value as text for the log."""
    if isinstance(value, tuple | list):
        return ",".join(map(text_of, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
