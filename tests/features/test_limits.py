"""The limits of tables in the feature spec."""

import pytest

from ctr_trainer.features.spec import FeatureSpec, TableLimits
from ctr_trainer.system.messages.errors import UserError
from tests.docs import page

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
