"""A small data set with every kind of feature, made anew in each test's directory."""

import numpy as np

from ctr_trainer.data.convert import convert
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

[[dense]]
columns = ["age"]
transform = "standardize"
default = 30.0

[[sparse]]
columns = ["user", "item", "place"]

[[sparse]]
name = "tags"
combiner = "mean"
max_length = 3
"""


def write_csv(path, rows, seed=0):
    """Writes `rows` examples whose clicks depend on user and item; some values are missing."""
    rng = np.random.default_rng(seed)
    user, item = rng.integers(0, 40, rows), rng.integers(0, 60, rows)
    place = rng.choice(["north", "south", ""], rows)
    taste = np.random.default_rng(99).normal(size=(100, 3))
    logits = -0.5 + (taste[user] * taste[40 + item % 60]).sum(1)
    clicked = (rng.random(rows) < 1 / (1 + np.exp(-logits))).astype(int)
    price, age = np.round(rng.lognormal(1, 1, rows), 3), rng.integers(18, 70, rows)
    with open(path, "w") as file:
        file.write("row,clicked,price,age,user,item,place,tags\n")
        for i in range(rows):
            tags = "|".join(f"t{t}" for t in rng.integers(0, 9, rng.integers(0, 5)))
            shown_age = "" if i % 7 == 0 else age[i]
            file.write(f"r{i},{clicked[i]},{price[i]},{shown_age},u{user[i]},i{item[i]},{place[i]},{tags}\n")


def make(directory, rows, seed=0):
    """-> the path of a converted data set of `rows` examples below `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "spec.toml").write_text(SPEC)
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
