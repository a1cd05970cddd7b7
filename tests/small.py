"""A small data set with every kind of feature, made anew in each test's directory."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctr_trainer.data.conversion.convert import convert
from ctr_trainer.features.spec import FeatureSpec

SPEC = """
name = "small"
ids = ["row"]

[label]
column = "clicked"

[csv]
header = true

[defaults]
dim = 4

[[dense]]
columns = ["price"]
transform = "log1p"
clip = [0, 20]

[[dense]]
columns = ["age"]
transform = "standardize"
default = 30.0

[[sparse]]
columns = ["user", "item", "place"]

[[sparse]]
name = "device"
missing = "zero"

[[sparse]]
name = "age_group"
column = "age"
buckets = [25, 40, 60]

[[sparse]]
name = "price_level"
column = "price"
quantiles = 4

[[sparse]]
name = "tags"
combiner = "mean"
max_length = 3

[[sparse]]
name = "topics"
combiner = "sum"
weight_separator = ":"

[[sparse]]
name = "words"
combiner = "sqrtn"
separator = " "
max_length = 3
keep = "last"
missing = "own"

[[sparse]]
name = "history"
slot = "item"
combiner = "none"
max_length = 4
"""
# Vectors of 30 of the 60 items, and of values that do not occur.
ITEMS = [f"i{number}" for number in range(30)]
NEVER = ["never", "nowhere"]
VECTORS = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
PRETRAINED = """
[[pretrained]]
name = "item"
file = "vectors.parquet"
key = "id"
value = "vector"
"""
# Two labels, of which the second implies the first.
MULTI_SPEC = SPEC.replace(
    '[label]\ncolumn = "clicked"',
    '[[label]]\ncolumn = "clicked"\n\n[[label]]\nname = "bought"\ncolumn = "order"\npositive = "yes"\nweight = 0.5',
)


def write_csv(path, rows, seed=0):
    """Writes `rows` examples whose clicks depend on user and item; some values are missing."""
    rng = np.random.default_rng(seed)
    user, item = rng.integers(0, 40, rows), rng.integers(0, 60, rows)
    place = rng.choice(["north", "south", ""], rows)
    taste = np.random.default_rng(99).normal(size=(100, 3))
    logits = -0.5 + (taste[user] * taste[40 + item % 60]).sum(1)
    clicked = (rng.random(rows) < 1 / (1 + np.exp(-logits))).astype(int)
    price, age = np.round(rng.lognormal(1, 1, rows), 3), rng.integers(18, 70, rows)
    more = np.random.default_rng([seed, 1])
    ordered = np.where((clicked == 1) & (more.random(rows) < 1 / (1 + np.exp(-taste[user, 0]))), "yes", "no")
    device = more.choice(["phone", "tablet", ""], rows)
    with open(path, "w") as file:
        file.write("row,clicked,price,age,user,item,place,tags,order,device,topics,words,history\n")
        for i in range(rows):
            tags = "|".join(f"t{t}" for t in rng.integers(0, 9, rng.integers(0, 5)))
            shown_age = "" if i % 7 == 0 else age[i]
            file.write(f"r{i},{clicked[i]},{price[i]},{shown_age},u{user[i]},i{item[i]},{place[i]},{tags},")
            topics = (f"p{t}" + ("" if t % 3 == 0 else f":{t / 4}") for t in more.integers(0, 9, more.integers(0, 4)))
            words = " ".join(f"w{w}" for w in more.integers(0, 9, more.integers(0, 5)))
            history = "|".join(f"i{h}" for h in more.integers(0, 60, more.integers(0, 7)))
            file.write(f"{ordered[i]},{device[i]},{'|'.join(topics)},{words},{history}\n")


def make(directory, rows, seed=0, labels=1, more=""):
    """Makes a converted data set of `rows` examples below `directory`, and returns its path.

    Args:
      labels: 1 for `clicked`, 2 for `clicked` and `bought`.
      more: TOML at the end of the spec.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "spec.toml").write_text((MULTI_SPEC if labels == 2 else SPEC) + more)
    write_csv(directory / "rows.csv", rows, seed)
    convert(
        "csv",
        str(directory / "rows.csv"),
        directory / "data",
        FeatureSpec.load(directory / "spec.toml"),
        rows_per_group=50,
        progress=False,
    )
    return directory / "data"


def make_pretrained(directory, rows, more="", vectors=VECTORS):
    """Makes a converted data set whose rows of items begin with vectors; `more` ends the spec's `[[pretrained]]`."""
    directory.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": ITEMS + NEVER, "vector": vectors.tolist()}), directory / "vectors.parquet")
    return make(directory, rows, more=PRETRAINED + more)
