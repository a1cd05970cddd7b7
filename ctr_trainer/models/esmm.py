"""ESMM: learns conversions over all impressions, through clicks."""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from ctr_trainer.features.tensors import Features
from ctr_trainer.models.delayed_labels import LabelsHook
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
    hooks = [_implied_label_hook(click, conversion, labels)]
    return dataclasses.replace(spec, training_hooks=hooks, evaluation_hooks=hooks)


def _implied_label_hook(click: str, conversion: str, labels: dict[str, tf.Tensor]) -> LabelsHook:
    """Returns the hook of a batch in which an example has a conversion and no click."""
    converted = labels[conversion] > 0
    return LabelsHook(
        tf.logical_and(converted, labels[click] <= 0),
        converted,
        lambda alone, size: (
            f"model=esmm: {alone} of {size} examples with {conversion} = 1 have {click} = 0, in a batch on rank "
            f"{distributed.rank()}. The model requires that only an example with {click} has {conversion}: correct the "
            f"labels, or name the two with model_params=click=NAME,conversion=NAME (now {click} and {conversion}), or "
            "choose mmoe or ple"
        ),
    )


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
