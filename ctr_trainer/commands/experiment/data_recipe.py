"""The recipe `data`: defaults that suit the training data, chosen by its numbers of rows and of distinct keys.

A given flag replaces its own choice, and those that make no sense with it, as a learning rate of another optimizer; the
log says which. Large data, streams and data with an unknown number of rows keep the fixed defaults. A model that has
checkpoints keeps the choices from the beginning of its training.
"""

from collections.abc import Callable
from typing import Any

from ctr_trainer.checkpoint.checkpoint import list_checkpoints
from ctr_trainer.commands.experiment.as_trained import network_of
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.commands.experiment.open_source import open_source
from ctr_trainer.commands.experiment.recipes import (
    NAME,
    OF_EVALUATIONS,
    Facts,
    choices,
    decides,
    fit,
    given_values,
    length_of,
)
from ctr_trainer.commands.reports.training_run import FLAGS_FILE
from ctr_trainer.data.dataset import FILE, open_dataset
from ctr_trainer.models.registry import MODELS
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.by_flag import replaced
from ctr_trainer.settings.setting import shown
from ctr_trainer.settings.training_configs import EvaluationConfig
from ctr_trainer.system.files.paths import path_of

CHOSEN = "chosen"  # The key of this recipe's choices in flags.json.
_OPTIMIZERS = "optimizer", "embedding_optimizer"
_RATES = "learning_rate", "embedding_learning_rate", "batch_size"  # A model's record does not have them.


def decide(
    given: frozenset[str], experiment: Experiment, evaluation: EvaluationConfig
) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Returns (chosen values by flag, those to save as `CHOSEN`, log line, "" for none) for given flags.

    A collective: rank 0 inspects the model and the data. Nothing is chosen for another recipe, nor for a new model of a
    stream, but the network of a warm start; `flags.json` then keeps what was saved.
    """
    model_dir, own = experiment.model.model_dir, given_values(given, experiment, evaluation)
    found = distributed.broadcast_object(_kept(model_dir) if distributed.is_chief() else None, "settings_chosen_before")
    kept, saved = found or (None, {})
    has_end = decides(experiment)  # A stream has none.
    network = network_of(experiment.run.warm_start, own) if kept is None else {}
    if experiment.model.recipe != NAME or (kept is None and not has_end):
        return network, saved, ""
    if kept and (not has_end or (experiment.data.next_data and not experiment.data.eval_data)):
        kept = {name: value for name, value in kept.items() if name not in ("epochs", *OF_EVALUATIONS)}
        facts = facts_of(experiment) if has_end else None
        kept |= length_of(facts, own) if facts and facts.size != "large" else {}  # Of data that no evaluation ends.
    if kept is not None:
        # The optimizers are those of the model, whose params and rates can be given without them.
        optimizers = {name: kept[name] for name in _OPTIMIZERS if name in kept}
        values, notes = fit(kept, optimizers | own)
        line = f"recipe {NAME}: {model_dir} keeps what its training began with: {_shown(optimizers | values, notes)}"
        return values, saved, line if values else ""
    facts = facts_of(replaced(experiment, network))
    values, notes = choices(facts, own | network)
    what = f"{facts.size} data, so {_shown(values, notes)}" if values else f"{facts.size} data keep the fixed defaults"
    rates = {name: own[name] for name in _RATES if name in own} if values else {}
    what += f"; the network of {experiment.run.warm_start}" if network else ""
    return network | values, values | rates, f"recipe {NAME}: {facts.line()}: {what}"


def facts_of(experiment: Experiment) -> Facts:
    """Returns the `Facts` of the training data. A collective: rank 0 reads them."""
    data, model = experiment.data, experiment.model
    source, is_one_host = open_source(data.train_data, experiment, fitted=False), distributed.hosts() == 1

    def look(advanced: Callable[[str], None]) -> dict[str, Any]:
        is_converted = (path_of(source.name) / FILE).exists()
        info = open_dataset(source.name) if is_converted else None
        spec, may_move = source.spec, all(each.trained for each in source.spec.pretrained)
        return {
            "rows": sum(source.group_rows),
            "keys": sum(info.distinct.values()) if info else None,
            "has_validation": bool(data.eval_data),
            "has_logloss": model.model in MODELS and len(spec.labels) == 1,
            "has_pieces": any(feature.pieces for feature in spec.dense),
            "can_share": is_one_host and may_move and not spec.limits,
        }

    return Facts(**distributed.from_chief(look, "facts_of_the_data"))


def _kept(model_dir: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Returns (what to keep from a training's beginning, what is saved of it); None without checkpoints."""
    if not list_checkpoints(model_dir):
        return None
    file = path_of(model_dir) / FLAGS_FILE
    said = file.read_json("remove it to continue with the given flags") if file.is_file() else {}
    chosen: dict[str, Any] = said.get(CHOSEN, {})
    if chosen.get("early_stopping_patience") or chosen.get("lr_schedule") == "plateau":
        # They need settings that were given then, and so are not among the choices.
        once = "eval_steps" if "eval_epochs" in chosen else ""  # It may have been given only once.
        names = [name for name in OF_EVALUATIONS if name != once and said["flags"].get(name)]
        return {name: said["flags"][name] for name in names} | chosen, chosen
    return chosen, chosen


def _shown(values: dict[str, Any], notes: list[str]) -> str:
    return "; ".join([", ".join(f"{name}={shown(value)}" for name, value in values.items()), *notes])
