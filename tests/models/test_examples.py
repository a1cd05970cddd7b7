"""The examples in the docstrings of the layers and of the models, run as they stand, each in a graph of its own."""

import doctest
import importlib
import inspect
import pkgutil

import pytest
import tensorflow as tf

from ctr_trainer import layers
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.tensors import FedFeatures
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.registry import MODELS, find_model

# What layers are made with, and what says all in its first line.
HELPERS = {"outer", "flat_inputs", "flat", "BatchStatistic", "batch_statistics", "SharedSignatures", "random_planes"}
SPEC = {
    "name": "example",
    "defaults": {"dim": 4},
    "dense": [{"columns": ["price"]}],
    "sparse": [{"columns": ["user", "item"]}, {"name": "history", "slot": "item", "combiner": "none", "max_length": 5}],
}


def layer_functions():
    """Returns the public functions and classes of the modules of `ctr_trainer.layers`."""
    found = []
    for each in pkgutil.iter_modules(layers.__path__, f"{layers.__name__}."):
        module = importlib.import_module(each.name)
        own = [value for value in vars(module).values() if getattr(value, "__module__", None) == each.name]
        found += [value for value in own if value.__name__[0] != "_" and value.__name__ not in HELPERS]
    return found


LAYERS = layer_functions()


def run_example(function, **given):
    """Runs the example of a docstring; asserts that there is one, with a line of advice, and that it says the truth."""
    text = inspect.getdoc(function)
    assert text.count("\nAdvice: ") == 1 and text.count("\nExample:\n") == 1, function
    names = {**inspect.getmodule(function).__dict__, "tf": tf, **given}
    (example,) = doctest.DocTestFinder(recurse=False).find(function, function.__name__, globs=names)
    said = []
    doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert example.examples and not said, "".join(said)


@pytest.mark.parametrize("layer", LAYERS, ids=lambda each: each.__name__)
def test_the_example_of_a_layer_gives_what_it_says(layer):
    with tf.Graph().as_default(), tf.compat.v1.Session():
        run_example(layer)


@pytest.mark.parametrize("name", MODELS)
def test_the_example_of_a_model_gives_what_it_says(name):
    model = find_model(name)
    labels = ("click", "buy") if model.params_class.several_labels else ("click",)
    spec = FeatureSpec.from_dict({**SPEC, "label": [{"column": label} for label in labels]})
    with tf.Graph().as_default():
        run_example(model.model_fn, features=FedFeatures(spec, {}, 32), ModelParams=ModelParams)


def test_an_example_that_is_wrong_is_found():
    def layer():
        """Adds.

        Advice: none.

        Example:
          >>> 1 + 1
          3
        """

    with pytest.raises(AssertionError, match="Expected:"):
        run_example(layer)
