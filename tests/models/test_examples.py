"""The examples in the docstrings of the layers and of the models, and the page about models, run as they stand."""

import dataclasses
import doctest
import importlib
import inspect
import pathlib
import pkgutil
import re

import pytest
import tensorflow as tf

from ctr_trainer import cli
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.tensors import FedFeatures
from ctr_trainer.models import layers
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.registry import MODELS, find_model
from tests import small
from tests.models import every

# What layers are made with, and what says all in its first line.
HELPERS = {
    "micro_batch",
    "outer",
    "flat_inputs",
    "flat",
    "BatchStatistic",
    "batch_statistics",
    "SharedSignatures",
    "random_planes",
}
SPEC = {
    "name": "example",
    "defaults": {"dim": 4},
    "dense": [{"columns": ["price"]}],
    "sparse": [{"columns": ["user", "item"]}, {"name": "history", "slot": "item", "combiner": "none", "max_length": 5}],
}


def layer_functions():
    """Returns the public functions and classes of the modules of `ctr_trainer.models.layers`."""
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


OF_ALL = {field.name for field in dataclasses.fields(ModelParams)}
PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "models.md").read_text()


def test_the_page_has_each_model_with_its_params():
    page = PAGE[: PAGE.index("| model | examples/s | AUC")]
    rows = {match.group(1): match.group(0) for match in re.finditer(r"^\| `(\w+)` \|.*$", page, re.MULTILINE)}
    others = {model for _, model, _ in every.CASES.values()}
    assert list(rows) == [name for name in MODELS if name not in others]
    for name, row in rows.items():
        for field in (each.name for each in dataclasses.fields(find_model(name).params_class)):
            assert field in OF_ALL or f"`{field}` (" in row or f"`{field}`," in row, (name, field)


def test_the_pages_own_model_trains(tmp_path, monkeypatch):
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "crossed.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    data = small.make(tmp_path, rows=50)
    flags = ["--model=crossed:model_fn", "--model_params=layers=1", "--threads=1", "--batch_size=16"]
    assert cli.main(["train", f"--train_data={data}", f"--model_dir={tmp_path / 'model'}", *flags]) == 0
