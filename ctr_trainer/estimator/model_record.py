"""What makes a model's graph, as its checkpoints keep it, so that it is not read as another model."""

import dataclasses
import inspect
import json
import logging
from collections.abc import Mapping

from ctr_trainer.messages.errors import UserError
from ctr_trainer.settings.by_flag import by_flag, by_names_of_now

_log = logging.getLogger(__name__)
_OURS = "ctr_trainer.models."
_OF_ROWS = ("embedding_optimizer", "embedding_initial_accumulator", "embedding_stddev", "seed")
# Names in the params of a program of one's own that say how it is trained, and not what its graph is.
OF_TRAINING = ("learning_rate", "dropout", "batch_size")


@dataclasses.dataclass(frozen=True)
class ModelRecord:
    """A model that is to be trained, evaluated, asked or exported.

    Attributes:
      name: what `--model` calls it: a registered name or `my.module:model_fn`. None of a function that no import finds.
      params: by name, the params that JSON can hold.
      defaults: by name, what a param is by default, as far as that is known and JSON can hold it.
      may_change: names of params of which a trained model may be given other values.
      rows: by flag, how the embedding rows are made and trained.
      optimizer: of the dense variables; None where it is not known.
      spell: f(name, value) -> the setting of a param as its user writes it.
    """

    name: str | None
    params: dict
    defaults: dict
    may_change: tuple
    rows: dict
    optimizer: str | None
    spell: object

    @staticmethod
    def of(model_fn, name, params, config, may_change=()):
        """Returns the ModelRecord of an `Estimator`'s arguments; `name` is None for the name of the function."""
        if dataclasses.is_dataclass(params):
            of_params = {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}
        else:
            of_params = dict(params) if isinstance(params, Mapping) else {}
        optimizer = getattr(getattr(params, "train_op_fn", None), "optimizer", None)
        values = by_flag(config)
        rows = {name: values[name] for name in _OF_ROWS if name in values}
        return ModelRecord(
            name=canonical(name or name_of(model_fn)),
            params={name: value for name, value in of_params.items() if _is_json(value)},
            defaults={name: getattr(type(params), name, None) for name in of_params if hasattr(type(params), name)},
            may_change=(*getattr(params, "may_change", OF_TRAINING), *may_change),
            rows=rows,
            optimizer=getattr(optimizer, "name", None),
            spell=getattr(params, "as_flag", _plain),
        )

    def to_dict(self, features=None):
        """Returns what a checkpoint keeps.

        Args:
          features: `FedFeatures`, whose feature spec and statistics are kept too; None of a model that has none.
        """
        values = {"name": self.name, "params": self.params, "rows": self.rows, "optimizer": self.optimizer}
        if features is not None:
            values["features"] = {"spec": features.spec.to_dict(), "statistics": features.statistics}
        return values

    def check(self, checkpoint, model_dir, training=False):
        """Makes sure that the checkpoint is one of this model.

        Args:
          checkpoint: a `Checkpoint`.
          model_dir: of it, for the message.
          training: whether it is to be trained on, so that the optimizers have to be the same too.

        Raises:
          UserError: it is not; names each setting that differs, with both values.
        """
        recorded = checkpoint.model
        if recorded is None:
            _log.warning(
                "%s does not say which model it is of, as checkpoints of earlier versions do not: it is read as %s, "
                "as the flags and settings of now say",
                checkpoint.path,
                f"--model={self.name}" if self.name else "the model given",
            )
            return
        names = (self.name, recorded["name"])
        if None not in names and not is_same(*names):
            raise refusal(model_dir, [(f"--model={names[0]}", f"--model={names[1]}")])
        # A param that came with a later version was, for this checkpoint, what it is by default.
        params = {**self.defaults, **recorded["params"]}
        pairs = [
            (self.spell, name, own, params[name])
            for name, own in self.params.items()
            if name in params and name not in self.may_change
        ]
        if training:
            if None not in (self.optimizer, recorded["optimizer"]):
                pairs.append((flag, "optimizer", self.optimizer, recorded["optimizer"]))
            if checkpoint.tables:
                rows = by_names_of_now(recorded["rows"])
                pairs += [(flag, name, own, rows.get(name, own)) for name, own in self.rows.items()]
        differing = [
            (spell(name, own), spell(name, trained))
            for spell, name, own, trained in pairs
            if _json(own) != _json(trained)
        ]
        if differing:
            raise refusal(model_dir, differing)


def refusal(model_dir, differing):
    """Returns the UserError of settings that are not those that a model was trained with.

    Args:
      differing: list of (setting as it is given, setting as it was trained with).
    """
    given, trained = (" ".join(texts) for texts in zip(*differing, strict=True))
    return UserError(
        f"{given}, but the model in {model_dir} was trained with {trained}: leave that out, or name another --model_dir"
    )


def flag(name, value):
    """Returns a setting as the command line writes it."""
    return f"--{name}={_text(value, ',')}"


def name_of(model_fn):
    """Returns the name by which `--model` finds a function; None for one of a program or another function."""
    module, function = getattr(model_fn, "__module__", None), getattr(model_fn, "__qualname__", "")
    if not inspect.isfunction(model_fn) or module in (None, "__main__") or "." in function:
        return None
    return f"{module}:{function}"


def canonical(name):
    """Returns a model's registered name if it has one, else `name`."""
    if name and name.startswith(_OURS) and name.endswith(":model_fn"):
        return name.removeprefix(_OURS).removesuffix(":model_fn")
    return name


def is_same(one, other):
    """Returns whether two names are of one function, which may be imported by a longer or a shorter name."""
    longer, shorter = sorted((one, other), key=len, reverse=True)
    return longer == shorter or (":" in shorter and longer.endswith(f".{shorter}"))


def _plain(name, value):
    return f"{name}={value}"


def _text(value, separator):
    return separator.join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _is_json(value):
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _json(value):
    """Returns a value as it is read back: JSON has no tuples."""
    return json.loads(json.dumps(value))
