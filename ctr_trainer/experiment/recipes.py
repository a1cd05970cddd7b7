"""Presets of flags: one word sets what another library's training loop does, and any given flag overrides it."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

# For each recipe its flags, in groups: a group is left out as a whole if its first flag is given, or a flag that stands
# for it. FuxiCTR's values stand in its `fuxictr/pytorch/models/rank_model.py` and in its models' configurations.
_Group = tuple[dict[str, str], tuple[str, ...]]
RECIPES: dict[str, tuple[_Group, ...]] = {
    "data": (),  # `data_recipe` decides when the data are known.
    "none": (),
    "bars": (
        ({"optimizer": "adam"}, ()),
        ({"learning_rate": "0.001"}, ()),
        ({"embedding_optimizer": "dense_adam"}, ()),
        ({"embedding_learning_rate": "0.001"}, ()),
        ({"embedding_lr_schedule": "same"}, ()),
        ({"embedding_stddev": "0.0001"}, ()),
        ({"clip_norm": "10"}, ()),
        ({"batch_norm_momentum": "0.9"}, ()),
        ({"batch_norm_epsilon": "1e-05"}, ()),
        ({"lr_schedule": "plateau", "decay_rate": "0.1", "plateau_patience": "1"}, ()),
        ({"eval_epochs": "1"}, ("eval_steps",)),
        ({"best_metric": "auc"}, ()),
        ({"early_stopping_patience": "2"}, ()),
        ({"epochs": "100"}, ("max_steps",)),
        ({"shuffle_buffer": "1000000"}, ()),
    ),
}


def flags_of(recipe: str, given: Collection[str]) -> dict[str, str]:
    """Returns what a recipe sets, by flag, without the groups that given flags replace."""
    chosen: dict[str, str] = {}
    for group, others in RECIPES[recipe]:
        if next(iter(group)) not in given and not set(others) & set(given):
            chosen |= {name: value for name, value in group.items() if name not in given}
    return chosen


def lines(recipe: str, values: Mapping[str, Any]) -> Iterator[str]:
    """Yields the log line about what a recipe has set in the values of a run, and what is there in its place."""
    if not RECIPES[recipe]:
        return
    all_of = {name: text for group, _ in RECIPES[recipe] for name, text in group.items()}
    own = {name for name, text in all_of.items() if _text(values.get(name)) != text}
    sets = ", ".join(f"{name}={text}" for name, text in all_of.items() if name not in own)
    others = ", ".join(f"{name}={_text(values.get(name))}" for name in all_of if name in own)
    yield f"recipe {recipe} sets {sets}{f'; in place of its values there are {others}' if others else ''}"


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
