"""ESMM: learns conversions over all impressions, through clicks."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec, ModeKeys
from ctr_trainer.models.head import Labels, multi_head
from ctr_trainer.models.layers.inputs import flat_inputs
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import task_names, tower
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.setting import setting
from ctr_trainer.system.messages.errors import UserError


@dataclasses.dataclass(frozen=True)
class Params(ModelParams):
    """The params of ESMM."""

    several_labels = True

    click: str = setting("", "label of a click; by default the first of the feature spec")
    conversion: str = setting(
        "", "label of a conversion, 1 only if the click's is 1; by default the second of the spec"
    )


class ImpliedLabelHook(tf1.train.SessionRunHook):
    """Raises UserError after a batch in which a label is 1 where the label that it implies is 0, and counts them.

    Args:
      model: name of the model, for the error.
      implied, label: names of the two labels, such as `click` and `conversion`.
      labels: dict of name -> float32[B].
    """

    def __init__(self, model: str, implied: str, label: str, labels: dict[str, tf.Tensor]) -> None:
        self._what = model, implied, label
        self._labels = labels[implied], labels[label]

    def before_run(self, run_context: tf1.train.SessionRunContext) -> tf1.train.SessionRunArgs | None:
        return tf1.train.SessionRunArgs(self._labels)

    def after_run(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        implied, label = run_values.results
        alone = int(np.sum((label > 0) & (implied <= 0)))
        if alone:
            model, first, second = self._what
            raise UserError(
                f"model={model}: {alone} of {int(np.sum(label > 0))} examples with {second} = 1 have {first} = 0, in "
                f"a batch of {len(label)} on rank {distributed.rank()}. The model requires that only an example with "
                f"{first} has {second}: correct the labels, or name the two with "
                f"model_params=click=NAME,conversion=NAME (now {first} and {second}), or choose mmoe or ple"
            )


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`pCTR = sigmoid(mlp_1(x))`, `pCVR = sigmoid(mlp_2(x))`, `pCTCVR = pCTR * pCVR`; x shared by both.

        loss = weight_click * cross entropy(click, pCTR) + weight_conversion * cross entropy(conversion, pCTCVR)

    `probabilities/<conversion>` is pCTCVR, the probability that an impression leads to a click and a conversion; the
    prediction `cvr` is pCVR, that a click leads to a conversion. A batch with a conversion and no click ends the run.

    Advice: for conversions so rare that a model of clicked examples alone has too few.

    Source: Ma et al., Entire Space Multi-Task Model, SIGIR 2018, section 2.2.
    """
    click, conversion = _labels(task_names(features, labels, "esmm"), params)
    x = flat_inputs(features)
    ctr = dense(tower(x, mode, params, name="ctr"), 1, "ctr_logits", bias=params.base_logit(click))
    cvr = dense(tower(x, mode, params, name="cvr"), 1, "cvr_logits", bias=params.base_logit(conversion, given=click))
    logits = {click: ctr, conversion: logit_of_product(ctr, cvr)}
    spec = multi_head(features, labels, mode, params, logits, predictions={"cvr": tf.sigmoid(tf.squeeze(cvr, 1))})
    if mode == ModeKeys.PREDICT:
        return spec
    assert labels is not None
    hooks = [ImpliedLabelHook("esmm", click, conversion, labels)]
    return dataclasses.replace(spec, training_hooks=hooks, evaluation_hooks=hooks)


def logit_of_product(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Computes `log(p / (1 - p))` of `p = sigmoid(a) * sigmoid(b)`, without computing p, which may round to 0 or 1.

    1 / p = (1 + exp(-a)) (1 + exp(-b)),   so   (1 - p) / p = exp(-a) + exp(-b) + exp(-a - b)
    """
    return -tf.reduce_logsumexp(tf.stack([-a, -b, -a - b]), 0)


def _labels(names: Sequence[str], params: Params) -> tuple[str, str]:
    first, second, *_ = names
    chosen = {"click": params.click or first, "conversion": params.conversion or second}
    for param, name in chosen.items():
        if name not in names:
            raise UserError(f"{param}={name}: no such label; the feature spec has {', '.join(names)}")
    if chosen["click"] == chosen["conversion"]:
        raise UserError(
            f"click={chosen['click']},conversion={chosen['conversion']}: must be two labels of {', '.join(names)}"
        )
    return chosen["click"], chosen["conversion"]
