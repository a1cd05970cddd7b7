"""The modes of a `model_fn`, and the spec that it returns."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ctr_trainer.system.messages.errors import NamedArguments, UserError


class ModeKeys:
    """The purposes for which a `model_fn` is called, with the names and values of `tf.estimator.ModeKeys`."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


@dataclasses.dataclass(frozen=True)
class EstimatorSpec(NamedArguments):
    """The operations of a model in one mode, as in `tf.estimator.EstimatorSpec`.

    Attributes:
      mode: one of `ModeKeys`.
      predictions: tensor, or dict of tensors whose first dimension is the batch. If the dict has `logits` and
        `probabilities`, both float32[B], the hooks and `evaluate` compute the click metrics from them. With several
        labels these are `logits/<label>` and `probabilities/<label>`, and the metrics are `auc/<label>` and so on.
      loss: scalar; needed for training and evaluation.
      train_op: operation of an optimizer step; training needs this or `optimizer`. The Estimator does not exchange its
        gradients between workers: create it by `DistributedOptimizer(optimizer).minimize` or the package's `TrainOp`.
      eval_metric_ops: dict of name -> (value, update_op). With several workers the values are averaged, weighted by
        examples, which is exact for means only.
      export_outputs: dict of name -> `export.signatures.PredictOutput`, `ClassificationOutput` or `RegressionOutput`:
        the signatures of an export. None exports the predictions.
      training_chief_hooks: session hooks of rank 0.
      training_hooks: session hooks of all ranks, for training.
      scaffold: `tf.compat.v1.train.Scaffold`, whose operations and functions initialize the variables. Its saver is
        not used: checkpoints are written together with the rows.
      evaluation_hooks, prediction_hooks: session hooks of an evaluation, and of `Estimator.predict`.
      optimizer: a `tf.compat.v1.train.Optimizer`, from which the Estimator makes the `train_op` of all workers; see
        `estimator.built_model.build_step`.

    Caveat: the loss must be the mean over the batch's examples, because the workers' gradients are averaged. If the
    loss is a sum, K workers that each have a Kth of the batch train with a Kth of the gradient of one worker. The log
    warns of such a loss.

    Raises:
      ValueError: the mode is unknown, what the mode needs is missing, or both `train_op` and `optimizer` are given.
    """

    mode: str
    predictions: Any = None
    loss: Any = None
    train_op: Any = None
    eval_metric_ops: Mapping[str, Any] | None = None
    export_outputs: Mapping[str, Any] | None = None
    training_chief_hooks: Sequence[Any] | None = ()
    training_hooks: Sequence[Any] | None = ()
    scaffold: Any = None
    evaluation_hooks: Sequence[Any] | None = ()
    prediction_hooks: Sequence[Any] | None = ()
    optimizer: Any = None

    def __post_init__(self) -> None:
        for name in ("training_chief_hooks", "training_hooks", "evaluation_hooks", "prediction_hooks"):
            object.__setattr__(self, name, session_hooks(getattr(self, name), name))
        if self.train_op is not None and self.optimizer is not None:
            raise ValueError("an EstimatorSpec has train_op or optimizer, not both")
        step = "train_op" if self.optimizer is None else "optimizer"
        needs = {ModeKeys.TRAIN: ("loss", step), ModeKeys.EVAL: ("loss",), ModeKeys.PREDICT: ("predictions",)}
        if self.mode not in needs:
            raise ValueError(f"mode {self.mode!r} is not one of {', '.join(needs)}")
        missing = [name for name in needs[self.mode] if getattr(self, name) is None]
        if missing:
            raise ValueError(f"an EstimatorSpec of mode {self.mode!r} needs {' and '.join(missing)}")


def session_hooks(hooks: Any, name: str = "hooks") -> tuple[Any, ...]:
    """Returns a tuple of the session hooks that a program gives as the argument `name`; () for None."""
    given = tuple(hooks) if isinstance(hooks, Iterable) else () if hooks is None else None
    if given is None or any(isinstance(each, type) or not hasattr(each, "before_run") for each in given):
        raise UserError(
            f"{name}={hooks}: expected a list of session hooks, instances of tf.compat.v1.train.SessionRunHook or of "
            "classes derived from it"
        )
    return given
