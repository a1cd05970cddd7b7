"""The model to train, and the settings that define its graph. Checkpoints record them, to refuse other models."""

import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ctr_trainer.checkpoint.checkpoint import Checkpoint
from ctr_trainer.features.tensors import Features
from ctr_trainer.settings.by_flag import by_flag
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.system.messages.errors import UserError

_OURS = "ctr_trainer.models."
_OF_ROWS = ("embedding_optimizer", "embedding_optimizer_params=initial_accumulator", "embedding_stddev", "seed")
# Names of params of a program's own model that change its training but not its graph.
OF_TRAINING = ("learning_rate", "dropout", "batch_size")
Spell = Callable[[str, Any], str]  # Formats the name and the value of a setting as its user writes them.


@dataclasses.dataclass(frozen=True)
class ModelRecord:
    """A model that is to be trained, evaluated, exported or used for predictions.

    Attributes:
      name: a registered name or `my.module:model_fn`; None for a function that cannot be imported.
      params: dict of param name -> value, for the values that JSON can represent.
      may_change: names of the params that may change after training.
      rows: dict of flag -> value of the settings that determine how embedding rows are created and trained.
      optimizer: name of the dense variables' optimizer; None if it is not known.
      spell: formats a param as its user writes it.
    """

    name: str | None
    params: dict[str, Any]
    may_change: tuple[str, ...]
    rows: dict[str, Any]
    optimizer: str | None
    spell: Spell

    @staticmethod
    def of(
        model_fn: Callable[..., Any],
        name: str | None,
        params: Any,
        config: RunConfig,
        may_change: Sequence[str] = (),
    ) -> "ModelRecord":
        """Returns the ModelRecord of an `Estimator`'s arguments. If `name` is None, the function's name is used."""
        if dataclasses.is_dataclass(params):
            all_params = {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}
        else:
            all_params = dict(params) if isinstance(params, Mapping) else {}
        optimizer = getattr(getattr(params, "train_op_fn", None), "optimizer", None)
        known, values = name or name_of(model_fn), by_flag(config)
        return ModelRecord(
            name=canonical(known) if known else None,
            params={name: value for name, value in all_params.items() if _is_json(value)},
            may_change=(*getattr(params, "may_change", OF_TRAINING), *may_change),
            rows={name: values[name] for name in _OF_ROWS if name in values},
            optimizer=getattr(optimizer, "name", None),
            spell=getattr(params, "as_flag", "{}={}".format),
        )

    def to_dict(self, features: Features | None = None) -> dict[str, Any]:
        """Returns the values that a checkpoint records, with the spec and the statistics of `features` if given."""
        values = {"name": self.name, "params": self.params, "rows": self.rows, "optimizer": self.optimizer}
        if features is None:
            return values
        return {**values, "features": {"spec": features.spec.to_dict(), "statistics": features.statistics}}

    def check(self, checkpoint: Checkpoint, model_dir: str, training: bool = False) -> None:
        """Refuses a checkpoint of another model; for `training`, also one with other optimizers or row settings.

        Raises UserError: a setting differs. The message names each setting that differs, with both values.
        """
        recorded = checkpoint.model
        trained_name = recorded["name"]
        if self.name and trained_name and not is_same(self.name, trained_name):
            raise refusal(model_dir, [(flag("model", self.name), flag("model", trained_name))])
        params = recorded["params"]
        pairs = [
            (self.spell, name, own, params[name])
            for name, own in self.params.items()
            if name in params and name not in self.may_change
        ]
        if training:
            if None not in (self.optimizer, recorded["optimizer"]):
                pairs.append((flag, "optimizer", self.optimizer, recorded["optimizer"]))
            if checkpoint.tables:
                rows = recorded["rows"]
                pairs += [(flag, name, own, rows.get(name, own)) for name, own in self.rows.items()]
        different = [each for each in pairs if _json(each[2]) != _json(each[3])]
        if different:
            raise refusal(model_dir, [(spell(name, own), spell(name, there)) for spell, name, own, there in different])


def refusal(model_dir: str, differing: Sequence[tuple[str, str]]) -> UserError:
    """Returns the error for settings that differ, each a pair (given setting, setting used in training)."""
    given, trained = (" ".join(texts) for texts in zip(*differing, strict=True))
    return UserError(
        f"{given}, but the model in {model_dir} was trained with {trained}: leave that out, or name another model_dir"
    )


def flag(name: str, value: Any) -> str:
    """Returns a setting as the command line writes it."""
    return f"--{name}={','.join(map(str, value)) if isinstance(value, list | tuple) else value}"


def name_of(model_fn: Callable[..., Any]) -> str | None:
    """Returns `module:function`; None for a function that is defined in a program or in another function."""
    module, function = getattr(model_fn, "__module__", None), getattr(model_fn, "__qualname__", "")
    if not inspect.isfunction(model_fn) or module in (None, "__main__") or "." in function:
        return None  # It cannot be imported.
    return f"{module}:{function}"


def canonical(name: str) -> str:
    """Returns a model's registered name if it has one, else `name`."""
    if name.startswith(_OURS) and name.endswith(":model_fn"):
        return name.removeprefix(_OURS).removesuffix(":model_fn")
    return name


def is_same(one: str, other: str) -> bool:
    """Returns whether two names refer to one function, which may be imported under a longer or a shorter name."""
    longer, shorter = sorted((one, other), key=len, reverse=True)
    return longer == shorter or (":" in shorter and longer.endswith(f".{shorter}"))


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _json(value: Any) -> Any:
    """Returns a value as it is read from a checkpoint, since JSON turns tuples into lists."""
    return json.loads(json.dumps(value))
