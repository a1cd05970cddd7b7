"""Feature specs, and the limits of tables in them."""

import json
import pathlib

import pytest

from ctr_trainer.features.columns import Label, TableLimits
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.messages.errors import UserError
from tests.docs import page
from tests.small import MULTI_SPEC
from tests.small import SPEC as SMALL

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs" / "features"
SPEC = """
name = "shop"
ids = ["row"]
[label]
column = "clicked"
[defaults]
dim = 4
transform = "log1p"
[[dense]]
columns = ["price1..price3"]
[[sparse]]
columns = ["user", "item"]
[[sparse]]
name = "history"
column = "seen"
slot = "item"
combiner = "mean"
separator = " "
max_length = 5
[[sparse]]
name = "country"
dim = 2
[[cross]]
columns = ["country", "user"]
"""


def load(tmp_path, text):
    path = tmp_path / "shop.toml"
    path.write_text(text)
    return FeatureSpec.load(path)


def test_compact_forms_write_out_to_one_feature_a_column(tmp_path):
    spec = load(tmp_path, SPEC)
    assert [(f.name, f.column, f.transform) for f in spec.dense] == [
        ("price1", "price1", "log1p"),
        ("price2", "price2", "log1p"),
        ("price3", "price3", "log1p"),
    ]
    assert [(f.name, f.column, f.slot, f.dim, f.combiner) for f in spec.sparse] == [
        ("user", "user", "user", 4, None),
        ("item", "item", "item", 4, None),
        ("history", "seen", "item", 4, "mean"),
        ("country", "country", "country", 2, None),
    ]
    tables = [(table.name, table.dim, [f.name for f in table.pooled]) for table in spec.tables]
    assert tables == [("dim4", 4, ["user", "item", "country_x_user", "history"]), ("dim2", 2, ["country"])]
    assert [(table.name, len(table.single)) for table in spec.with_dim(8).tables] == [("dim8", 4)]
    assert spec.sources == {**{f.name: (f.column,) for f in spec.sparse}, "country_x_user": ("country", "user")}
    assert [f.name for f in spec.of_columns({"user", "country"}).embedded] == ["user", "country", "country_x_user"]
    assert not spec.of_columns({"user", "seen"}).cross


def test_a_sequence_needs_its_length(tmp_path):
    text = SPEC.replace('"mean"', '"none"')
    assert [f.name for f in load(tmp_path, text).sequences] == ["history"]
    with pytest.raises(UserError, match=r"history.*'max_length' of at least 1"):
        load(tmp_path, text.replace("max_length = 5\n", ""))


def test_each_feature_is_of_one_kind(tmp_path):
    spec = load(tmp_path, SMALL)
    (table,) = spec.tables
    assert [f.name for f in table.single] == ["user", "item", "place", "device", "age_group", "price_level"]
    assert [f.name for f in spec.bucketised] == ["age_group", "price_level"]
    assert [f.name for f in table.bags] == [f.name for f in spec.bags] == ["tags", "topics", "words"]
    assert [f.name for f in table.sequences] == [f.name for f in spec.sequences] == ["history"]
    assert table.pooled == table.single + table.bags
    assert spec.labels == (spec.label,) == (Label("clicked", name="clicked", weight=1.0),)


def test_specs_survive_a_round_trip_as_json(tmp_path):
    shipped = [FeatureSpec.load(CONFIGS / f"{name}.toml") for name in ("criteo", "adult", "adult_pieces", "demo")]
    for spec in (load(tmp_path, SMALL), load(tmp_path, MULTI_SPEC), *shipped):
        assert FeatureSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


@pytest.mark.parametrize(
    "old, new, parts",
    [
        ("max_length = 5", "max_len = 5", ["shop.toml", "history", "'max_len'", "max_length"]),
        ("dim = 2", 'dim = "2"', ["shop.toml", "country", "'dim'", "a whole number"]),
        ("dim = 2", "dim = true", ["country", "True"]),
        ("dim = 2", "dim = 0", ["country", "at least 1"]),
        ("max_length = 5", "max_length = -1", ["history", "-1"]),
        ('combiner = "mean"', 'combiner = "max"', ["history", "'max'", "sum, mean"]),
        ('transform = "log1p"', 'transform = "log"', ["'log'", "none, log1p, standardize, minmax"]),
        ('transform = "log1p"', 'transform = "piecewise_linear"', ["price1", "pieces 0", "at least 2"]),
        ('transform = "log1p"', 'transform = "log1p"\npieces = 8', ["price1", "pieces 8", "piecewise_linear"]),
        ('name = "country"', 'name = "user"', ["shop.toml", "'user'", "twice"]),
        ('name = "country"', 'name = "label"', ["'label'", "twice"]),
        ('name = "country"', 'name = "country"\nslot = "item"', ["'item'", "country", "(dim 2)", "(dim 4)"]),
        ('column = "clicked"', 'column = "clicked"\npositive = "1"\nthreshold = 1', ["positive", "threshold"]),
        ('column = "clicked"', "threshold = 4", ["[label]", "'column'"]),
        ("price1..price3", "price3..price1", ["price3..price1"]),
        ("dim = 4\n", "", ["'dim'", "[defaults]"]),
        ('ids = ["row"]', "ids = [1]", ["'ids'"]),
        ('name = "shop"', "name = shop", ["shop.toml", "not TOML"]),
        ('name = "shop"', "", ["shop.toml", "'name'"]),
        ('combiner = "mean"', 'combiner = "none"\nkeep = "newest"', ["history", "'newest'", "first, last"]),
        ("max_length = 5", 'missing = "nan"', ["history", "'nan'", "zero, own"]),
        ("max_length = 5", 'weight_separator = " "', ["history", "' '", "the same as 'separator'"]),
        ("max_length = 5", "buckets = [1]", ["history", "'buckets'", "'combiner'", "exclude"]),
        ("dim = 2", "buckets = [1, 1]", ["country", "[1.0, 1.0]", "ascending"]),
        ("dim = 2", "buckets = []", ["country", "ascending"]),
        ("dim = 2", 'buckets = ["1"]', ["country", "'buckets'", "a list of numbers"]),
        ("dim = 2", "buckets = [16777216, 16777217]", ["country", "ascending"]),  # one number as float32
        ("dim = 2", "quantiles = 1", ["country", "quantiles 1", "at least 2"]),
        ("dim = 2", "quantiles = 4\nbuckets = [1]", ["country", "exclude each other"]),
        ("dim = 2", 'weight_separator = ":"', ["country", "'weight_separator'", "sum, mean, sqrtn"]),
        ('transform = "log1p"\n', "clip = [1, 0]\n", ["price1", "clip", "[1.0, 0.0]"]),
        ('transform = "log1p"\n', "clip = 3\n", ["[defaults]", "'clip'", "a list"]),
        ('name = "country"', 'name = "id:country"', ["'id:country'", "starts with"]),
        ('column = "clicked"', 'column = "clicked"\nweight = -1', ["[label]", "-1"]),
        ("[label]", '[[label]]\ncolumn = "clicked"\n[[label]]', ["'clicked'", "twice", "label"]),
        ("[label]", '[[label]]\nname = "a"\n[[label]]', ["[[label]] 1", "'column'"]),
        ('"country", "user"', '"country"', ["shop.toml", "[[cross]] 1", "['country'] are not at least two"]),
        ('"country", "user"', '"country", "seen"', ["'seen'", "0 single-valued", "user, item, country"]),
        ('"country", "user"]', '"country", "user"]\nquantiles = 3', ["[[cross]] 1", "'quantiles'", "max_rows"]),
        ('"country", "user"]', '"country", "user"]\nslot = "country"', ["'country_x_user' (dim 4)", "(dim 2)"]),
        ('"country", "user"]', '"country", "user"]\nmax_rows = -1', ["country_x_user", "max_rows -1"]),
        ("[label]", "[csv]\nheader = false\n[label]", ["[csv]", "columns"]),
        ("[label]", '[csv]\ndelimiter = "::"\n[label]', ["[csv]", "'::'"]),
    ],
)
def test_what_is_wrong_is_named_with_its_file_feature_and_key(tmp_path, old, new, parts):
    assert old in SPEC
    with pytest.raises(UserError) as error:
        load(tmp_path, SPEC.replace(old, new, 1))
    for part in parts:
        assert part in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match="nowhere.toml"):
        FeatureSpec.load(tmp_path / "nowhere.toml")


BASE = {"name": "s", "label": {"column": "y"}, "sparse": [{"name": "a", "dim": 4}, {"name": "b", "dim": 8}]}


def _spec(*limits):
    return FeatureSpec.from_dict({**BASE, "limits": list(limits)})


def test_limits_are_a_tables_own_and_come_back_from_the_written_spec():
    spec = _spec({"table": "dim8", "min_frequency": 3, "max_rows": 100, "eviction": "lfu", "ttl_steps": 50})
    assert spec.limits_of("dim8") == TableLimits("dim8", 3, 100, "lfu", 50)
    assert spec.limits_of("dim4") == TableLimits("dim4")
    assert FeatureSpec.from_dict(spec.to_dict()) == spec


def test_the_pages_example_is_read(tmp_path):
    (shown,) = page.blocks((page.DOCS / "embedding_service.md").read_text(), "toml")
    (tmp_path / "x.toml").write_text(f'name = "x"\n[label]\ncolumn = "y"\n[[sparse]]\nname = "a"\ndim = 16\n{shown}')
    assert FeatureSpec.load(tmp_path / "x.toml").limits == (TableLimits("dim16", 3, 1_000_000, "lfu", 50_000),)


def test_one_dim_for_all_takes_the_limits_along():
    assert _spec({"table": "dim8", "max_rows": 9}).with_dim(16).limits == (TableLimits("dim16", max_rows=9),)
    with pytest.raises(UserError, match="limits"):
        _spec({"table": "dim8", "max_rows": 9}, {"table": "dim4", "max_rows": 8}).with_dim(16)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_rows": 5}, "'table' is missing"),
        ({"table": "dim16"}, "'dim16' is there 1 times; each of dim4, dim8 may be there once"),
        ({"table": "dim4", "eviction": "fifo"}, "eviction 'fifo' is not one of lru, lfu"),
        ({"table": "dim4", "max_rows": -1}, "max_rows -1 is negative"),
        ({"table": "dim4", "min_frequency": 256}, "min_frequency 256 is above 255"),
        ({"table": "dim4", "min_freq": 2}, "unknown key 'min_freq'"),
    ],
)
def test_limits_that_cannot_be_are_refused(limits, message):
    with pytest.raises(UserError, match=message):
        _spec(limits)
