"""The classes and functions of `tf.estimator.export`: inputs, outputs and signatures of exported models."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.system.messages.errors import UserError

SERVING = tf1.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY
Receivers = Mapping[str, tf.Tensor]
_EXAMPLES = "examples"


@dataclasses.dataclass(frozen=True)
class ServingInputReceiver:
    """The result of a `serving_input_receiver_fn`.

    Attributes:
      features: the features for the `model_fn`.
      receiver_tensors: the placeholders that requests fill: dict of name -> tensor, or one tensor.
    """

    features: Any
    receiver_tensors: Any


class TensorServingInputReceiver(ServingInputReceiver):
    """A `ServingInputReceiver` for a `model_fn` whose features are one tensor."""


def build_raw_serving_input_receiver_fn(
    features: Mapping[str, tf.Tensor], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Returns a `serving_input_receiver_fn` whose requests contain the features themselves.

    Args:
      features: dict of name -> tensor or placeholder with the dtype and shape of the request's values.
      default_batch_size: number of examples in a request; None for any number.
    """

    def receive() -> ServingInputReceiver:
        tensors = {}
        for name, like in features.items():
            shape = like.shape.as_list()
            tensors[name] = tf1.placeholder(like.dtype, [default_batch_size, *shape[1:]] if shape else shape, name)
        return ServingInputReceiver(dict(tensors), tensors)

    return receive


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Returns a `serving_input_receiver_fn` whose requests contain serialized `tf.Example`s.

    Args:
      feature_spec: see `tf.io.parse_example`.
      default_batch_size: number of examples in a request; None for any number.
    """

    def receive() -> ServingInputReceiver:
        examples = tf1.placeholder(tf.string, [default_batch_size], "input_example_tensor")
        return ServingInputReceiver(tf1.parse_example(examples, dict(feature_spec)), {_EXAMPLES: examples})

    return receive


@dataclasses.dataclass(frozen=True)
class PredictOutput:
    """Named outputs.

    Attributes:
      outputs: tensor, or dict of name -> tensor.
    """

    outputs: Any

    def signature(self, receivers: Receivers) -> Any:
        """Returns the SignatureDef of these inputs."""
        outputs = self.outputs if isinstance(self.outputs, Mapping) else {"output": self.outputs}
        return tf1.saved_model.predict_signature_def(dict(receivers), dict(outputs))


@dataclasses.dataclass(frozen=True)
class ClassificationOutput:
    """Scores or names of classes, for the Classify requests of TensorFlow Serving.

    Attributes:
      scores: float32[B, n], or None.
      classes: string[B, n], or None.
    """

    scores: Any = None
    classes: Any = None

    def signature(self, receivers: Receivers) -> Any:
        """Returns the SignatureDef, whose only input is serialized `tf.Example`s."""
        return tf1.saved_model.classification_signature_def(_examples(receivers, self), self.classes, self.scores)


@dataclasses.dataclass(frozen=True)
class RegressionOutput:
    """One value per example, for the Regress requests of TensorFlow Serving.

    Attributes:
      value: float32[B].
    """

    value: Any

    def signature(self, receivers: Receivers) -> Any:
        """Returns the SignatureDef, whose only input is serialized `tf.Example`s."""
        return tf1.saved_model.regression_signature_def(_examples(receivers, self), self.value)


def signature_defs(spec: EstimatorSpec, receivers: Receivers) -> dict[str, Any]:
    """Returns the SignatureDefs, by name, of the `export_outputs` of a PREDICT spec, or of its predictions if it has
    none.

    Raises UserError if there are several outputs, and none is named `serving_default`.
    """
    outputs = dict(spec.export_outputs or {SERVING: PredictOutput(spec.predictions)})
    if SERVING not in outputs:
        if len(outputs) > 1:
            raise UserError(
                f"export_outputs has {', '.join(outputs)}: name one of them {SERVING!r}, which a server uses for "
                "requests that name no signature"
            )
        outputs[SERVING] = next(iter(outputs.values()))
    return {name: output.signature(receivers) for name, output in outputs.items()}


def _examples(receivers: Receivers, output: Any) -> tf.Tensor:
    if len(receivers) != 1 or next(iter(receivers.values())).dtype != tf.string:
        named = ", ".join(f"{name} ({tensor.dtype.name})" for name, tensor in receivers.items())
        raise UserError(
            f"a {type(output).__name__} takes one input of serialized examples, and the receiver has {named}: use "
            "build_parsing_serving_input_receiver_fn, or a PredictOutput"
        )
    return next(iter(receivers.values()))
