"""The balanced weight of positive examples, and training on a share of the negative examples."""

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_trainer.data import parquet
from ctr_trainer.data.class_weight import balanced_weight
from ctr_trainer.data.conversion.convert import convert
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.settings.setting import SettingError
from ctr_trainer.system.messages.errors import UserError
from tests import small
from tests.data.test_infer import write_csv

SPEC = """
name = "clicks"
{weight}
[csv]
header = true

[[label]]
column = "clicked"

[[label]]
name = "bought"
column = "order"
positive = "yes"

[[dense]]
columns = ["price"]
transform = "standardize"

[[sparse]]
columns = ["user"]
dim = 4
"""
ONE_LABEL = SPEC.replace('[[label]]\nname = "bought"\ncolumn = "order"\npositive = "yes"\n', "")
# Of 12 examples 3 are clicks, and 1 is an order.
CLICKED, ORDER = [1, 0, 0, 1] + [0] * 7 + [1], ["yes"] + ["no"] * 11
SHARE = 0.3


def _spec(tmp_path, text, weight=""):
    (tmp_path / "spec.toml").write_text(text.format(weight=weight))
    return FeatureSpec.load(tmp_path / "spec.toml")


def _columns(clicked):
    number = len(clicked)
    columns = {"clicked": clicked, "order": ORDER[:number], "price": [float(i) for i in range(number)]}
    return columns | {"user": [f"u{i}" for i in range(number)], "weight": [float(i + 1) for i in range(number)]}


def _converted(tmp_path, text, clicked, **options):
    source = write_csv(tmp_path / "rows.csv", _columns(clicked))
    convert("csv", source, tmp_path / "data", _spec(tmp_path, text, **options), progress=False)
    return tmp_path / "data"


@pytest.mark.parametrize("weight", ["", 'weight = "weight"'])
def test_the_balanced_weight_is_negatives_over_positives_without_weights(tmp_path, weight):
    data = _converted(tmp_path, ONE_LABEL, CLICKED, weight=weight)
    assert balanced_weight(data) == pytest.approx(9 / 3)
    assert balanced_weight(data, label="clicked") == pytest.approx(3.0)
    # A third of the 9 negatives is trained on.
    assert balanced_weight(data, negative_sampling=1 / 3) == pytest.approx(1.0)


def test_of_several_labels_one_is_to_be_named(tmp_path):
    data = _converted(tmp_path, SPEC, CLICKED)
    assert balanced_weight(data, "bought") == pytest.approx(11.0)
    with pytest.raises(
        SettingError, match="has clicked, bought: select one with label, or set positive_weight to a number"
    ) as error:
        balanced_weight(data)
    assert error.value.by_flags.endswith("select one with --label, or set --positive_weight to a number")


def test_parquet_made_elsewhere_takes_one_pass_over_its_labels(tmp_path, monkeypatch):
    pq.write_table(pa.table(_columns(CLICKED)), tmp_path / "rows.parquet", row_group_size=5)
    spec = _spec(tmp_path, SPEC)
    layout = parquet.scan([str(tmp_path / "rows.parquet")], spec)
    source, read = parquet.ForeignParquet(layout, spec, {}), []
    whole = parquet.ForeignParquet._read_group
    monkeypatch.setattr(
        parquet.ForeignParquet,
        "_read_group",
        lambda groups, group, columns, **options: (
            read.append((group, columns)) or whole(groups, group, columns, **options)
        ),
    )
    assert balanced_weight(source, "clicked") == pytest.approx(3.0)
    assert read == [(group, ["clicked", "order", "price"]) for group in range(3)]
    assert balanced_weight(source, "bought") == pytest.approx(11.0)


@pytest.mark.parametrize(("clicked", "lacking"), [([0, 0], "positive"), ([1, 1], "negative")])
def test_data_of_one_class_are_refused(tmp_path, clicked, lacking):
    with pytest.raises(UserError, match=f"has no {lacking} example for the label clicked"):
        balanced_weight(_converted(tmp_path, ONE_LABEL, clicked))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return small.make(tmp_path_factory.mktemp("sampling"), rows=1500)


def _batches(data, rank=0, size=1, batch_size=32, seed=4, **rest):
    settings = {"shuffle_buffer": 200, "epochs": 1, **rest}
    return BatchReader(data, batch_size, rank, size, seed=seed, negative_sampling=SHARE, **settings)


def _kept(batches):
    """Returns the ids of the examples that count."""
    kept = [batch.ids["row"][: batch.size][batch.weights[: batch.size] > 0] for batch in batches]
    return {str(row) for part in kept for row in part}


def test_positives_and_a_share_of_the_negatives_count_and_others_have_no_keys(data):
    negatives = counted = 0
    for batch in _batches(data):
        labels, counts = batch.labels[: batch.size] > 0.5, batch.weights[: batch.size] > 0
        assert counts[labels].all()
        negatives, counted = negatives + (~labels).sum(), counted + counts[~labels].sum()
        assert not batch.weights[batch.size :].any()
        without, bag = batch.weights == 0, batch.bags["tags"]
        assert not batch.keys["dim4"][without].any() and batch.keys["dim4"][~without].any(1).all()
        assert not bag.values[np.repeat(without, np.diff(bag.splits))].any()
    deviation = np.sqrt(negatives * SHARE * (1 - SHARE))
    assert abs(counted - negatives * SHARE) < 4 * deviation


def test_workers_readers_batch_sizes_and_restarts_change_nothing(data):
    expected = _kept(_batches(data))
    assert _kept(_batches(data, batch_size=7)) == expected
    assert _kept(_batches(data, num_readers=3)) == expected
    assert set().union(*(_kept(_batches(data, rank, 3)) for rank in range(3))) == expected
    first = _kept(itertools.islice(_batches(data), 20))
    position = _batches(data).position_after(20)
    assert first | _kept(_batches(data, position=position)) == expected
    assert 0 < len(first) < len(expected)


def test_epochs_and_seeds_draw_anew(data):
    batches = list(_batches(data, epochs=2))
    half = len(batches) // 2
    once, again = _kept(batches[:half]), _kept(batches[half:])
    assert once == _kept(_batches(data)) != again
    assert _kept(_batches(data, seed=9)) != once
