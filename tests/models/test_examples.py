"""The examples in the docstrings of the layers, and the page about models, run as they stand."""

import dataclasses
import doctest
import importlib
import pathlib
import pkgutil
import re

import tensorflow as tf

from ctr_trainer import cli, models
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.registry import MODELS, find_model
from tests import small
from tests.models import every

OF_ALL = {field.name for field in dataclasses.fields(ModelParams)}
PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "models.md").read_text()


def test_the_examples_of_the_layers_give_what_they_say():
    tried, said = 0, []
    for each in pkgutil.walk_packages(models.__path__, f"{models.__name__}."):
        for example in doctest.DocTestFinder().find(importlib.import_module(each.name), extraglobs={"tf": tf}):
            with tf.Graph().as_default(), tf.compat.v1.Session():
                doctest.DocTestRunner(verbose=False).run(example, out=said.append)
            tried += len(example.examples)
    assert tried > 5 and not said, "".join(said)


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
