"""Raw rows of tests/small.py to predict, and a model that reads each kind of feature."""

import csv

import tensorflow as tf

from ctr_trainer.data.conversion.convert import convert
from ctr_trainer.estimator import ModeKeys
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.models import deepfm
from ctr_trainer.models.head import binary_head

BYTES = ("user", "item", "place", "device")
LISTS = (("tags", "|"), ("topics", "|"), ("words", " "), ("history", "|"))
NUMBERS = ("price", "age")


def model_fn(features, labels, mode, params):
    """DeepFM, and how well the target suits the history."""
    spec = deepfm.model_fn(features, labels, ModeKeys.PREDICT, params)
    history = features["sequence/history"] * features["sequence_mask/history"][..., None]
    in_order = history * tf.reshape(tf.range(1.0, 5.0), [1, 4, 1])
    suits = tf.reduce_sum(in_order * features["feature/item"][:, None], [1, 2])
    return binary_head(features, labels, mode, params, (spec.predictions["logits"] + 10 * suits)[:, None])


def write(directory):
    """Writes 100 rows to served.csv and, converted, to served; half of them have users that training never saw.

    Args:
      directory: in which `small.make` has written its files.
    """
    with open(directory / "rows.csv") as file:
        lines = file.read().splitlines()
    served = [line.replace(",u", ",new-u") if i % 2 else line for i, line in enumerate(lines[1:101])]
    (directory / "served.csv").write_text("\n".join([lines[0], *served]) + "\n")
    spec = FeatureSpec.load(directory / "spec.toml")
    convert("csv", str(directory / "served.csv"), directory / "served", spec, progress=False)


def examples(path, missing=None):
    """Returns the raw values of a CSV file as a list of dicts; `missing` replaces missing numbers."""
    with open(path) as file:
        rows = list(csv.DictReader(file))
    found = [{name: row[name] for name in BYTES} for row in rows]
    for example, row in zip(found, rows, strict=True):
        example |= {name: row[name].split(separator) if row[name] else [] for name, separator in LISTS}
        example |= {name: float(row[name]) if row[name] else missing for name in NUMBERS}
    return found
