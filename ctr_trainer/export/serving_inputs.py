"""The inputs of an exported model that a `tf.data.Dataset` trained, by the names of `tf.estimator.export`."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

tf1 = tf.compat.v1
_EXAMPLES = "examples"


@dataclasses.dataclass(frozen=True)
class ServingInputReceiver:
    """What a `serving_input_receiver_fn` returns.

    Attributes:
      features: what `model_fn` is given.
      receiver_tensors: the placeholders that requests fill: dict of name -> tensor, or one tensor.
    """

    features: Any
    receiver_tensors: Any


class TensorServingInputReceiver(ServingInputReceiver):
    """The same for a `model_fn` whose features are one tensor."""


def build_raw_serving_input_receiver_fn(
    features: Mapping[str, tf.Tensor], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Returns a `serving_input_receiver_fn` whose requests have the features themselves.

    Args:
      features: dict of name -> tensor, or placeholder, whose dtype and shape the request's have.
      default_batch_size: examples of each request; None for any number.
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
    """Returns a `serving_input_receiver_fn` whose requests have serialized `tf.Example`s.

    Args:
      feature_spec: as `tf.io.parse_example` takes it.
      default_batch_size: examples of each request; None for any number.
    """

    def receive() -> ServingInputReceiver:
        examples = tf1.placeholder(tf.string, [default_batch_size], "input_example_tensor")
        return ServingInputReceiver(tf1.parse_example(examples, dict(feature_spec)), {_EXAMPLES: examples})

    return receive
