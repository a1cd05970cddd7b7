"""The simulated streams of late labels."""

import delayed_labels
import numpy as np
import pyarrow as pa
import pytest


@pytest.fixture
def streams():
    rng = np.random.default_rng(0)
    labels = (rng.random(3000) < 0.3).astype(np.float32)
    table = pa.table({"place": np.arange(3000), "C14": rng.integers(0, 26, 3000), "label": labels})
    return labels, {name: delayed_labels.records(table, each, 7) for name, each in delayed_labels.METHODS.items()}


def test_a_late_click_follows_its_negative_record_and_comes_once(streams):
    labels, found = streams
    for name in ("ignore", "es_dfm", "ignore_at_once", "fake_negative"):
        place, click, late = (found[name][column].to_numpy() for column in ("place", "click", "late"))
        assert 0 < late.sum() == len(place) - len(np.unique(place)) and (click[late == 1] == 1).all()
        first = {each: at for at, each in reversed(list(enumerate(place)))}
        again = np.flatnonzero(late)
        assert all(first[place[at]] < at and click[first[place[at]]] == 0 for at in again)
        clicks = np.bincount(place, click, minlength=3000)
        assert (clicks <= labels).all() and clicks.sum() > 0.98 * labels.sum()  # But for those after the last day.
    assert found["fake_negative"]["click"].to_numpy()[found["fake_negative"]["late"].to_numpy() == 0].sum() == 0


def test_the_oracle_has_all_labels_at_once_and_the_window_only_those_by_its_end(streams):
    labels, found = streams
    oracle, window = found["oracle"], found["window"]
    np.testing.assert_array_equal(oracle["click"].to_numpy()[np.argsort(oracle["place"].to_numpy())], labels)
    assert 0.2 * labels.sum() < window["click"].to_numpy().sum() < 0.8 * labels.sum()
    assert window["late"].to_numpy().sum() == oracle["late"].to_numpy().sum() == 0
