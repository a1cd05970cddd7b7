"""Gradients of rows, and training with a dense optimizer of the rows: all that is read has made all steps."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.data.batch import Bag
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.embedding.snapshot import snapshot
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.store.worker_rows import StepHistory, TableRows, weighed
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker.row_copies import Group, RowCopies
from ctr_trainer.estimator import EmbeddingConfig, EvalSpec, TrainSpec, train_and_evaluate
from ctr_trainer.estimator.open_embeddings import follow_steps
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.estimator.row_gradients import RowGradients, TableGradients
from ctr_trainer.live.publication.publisher import Publisher
from ctr_trainer.settings.optimizers import RowAdagrad, RowSgd
from ctr_trainer.settings.setting import SettingError
from ctr_trainer.settings.train_settings import Schedule
from ctr_trainer.settings.training_configs import PublishConfig
from tests import published, small
from tests.checkpoints import rows_by_key
from tests.constant import CONSTANT
from tests.estimator import deepfm
from tests.estimator.test_learning_rates import Killed, Rates
from tests.rows import read

STEPS = 12


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return small.make(tmp_path_factory.mktemp("dense_rows"), rows=600)


def _estimator(model_dir, optimizer="dense_adam", l2=0.1, **config):
    embedding = EmbeddingConfig(optimizer=optimizer, l2=l2, stddev=0.1)
    return deepfm.estimator(model_dir, TrainOp("adam", 0.01, 0.01, **CONSTANT), (4,), embedding=embedding, **config)


def _train(estimator, data, max_steps=STEPS, hooks=(), reader=BatchReader):
    estimator.train(lambda position: reader(data, 16, position=position, seed=5), hooks, max_steps=max_steps)
    return rows_by_key(estimator.latest_checkpoint())


def test_all_rows_of_a_checkpoint_and_of_a_publication_have_made_all_steps(data, tmp_path):
    publish = PublishConfig(to=str(tmp_path / "to"), secs=0.2)
    estimator = _estimator(tmp_path / "model", publish=publish)
    rows = _train(estimator, data)
    assert {row[-1] for row in rows.values()} == {STEPS} and len(rows) > 100
    found, record, _ = published.state(tmp_path / "to")
    saved = estimator.latest_checkpoint()
    assert found == published.weights_of(snapshot.iterate(saved.path, saved.tables))
    assert record.global_step == STEPS


def test_publications_change_no_bit_of_a_deterministic_training(data, tmp_path, monkeypatch):
    monkeypatch.setattr(Publisher, "after_step", lambda self, *at: self._offer_values(*at))  # Whatever the clock says.
    alone = _train(_estimator(tmp_path / "alone", deterministic=True), data)
    publish = PublishConfig(to=str(tmp_path / "to"))
    found = _train(_estimator(tmp_path / "published", deterministic=True, publish=publish), data)
    assert found.keys() == alone.keys()
    for key, row in alone.items():
        np.testing.assert_array_equal(found[key], row)
    tf.random.uniform([])  # TensorFlow's operations need no seed after it.


def test_a_run_that_resumes_ends_with_the_rows_of_one_that_was_not_interrupted(data, tmp_path):
    whole = _train(_estimator(tmp_path / "whole"), data, 15)
    before = _train(_estimator(tmp_path / "parts"), data, 5)
    assert len(_train(_estimator(tmp_path / "next"), data, 6)) > len(before)  # New keys right after the resume.
    parts = _train(_estimator(tmp_path / "parts"), data, 15)
    assert parts.keys() == whole.keys()
    for key, row in whole.items():
        np.testing.assert_allclose(parts[key], row, atol=1e-6)


def test_the_first_rate_after_a_resume_is_that_of_the_plateau(data, tmp_path, monkeypatch):
    """New rows catch up with it. The evaluation at step 8 halves it, and the checkpoint of step 10 is resumed."""
    rates, begin_step = [], StepHistory.begin_step
    monkeypatch.setattr(
        StepHistory, "begin_step", lambda history, rate: rates.append(rate) or begin_step(history, rate)
    )
    plateau = Schedule("plateau", decay_rate=0.5, patience=1)
    operation = TrainOp("adam", 0.01, 0.01, schedule=plateau, embedding_lr_schedule="same")
    valid = EvalSpec(
        lambda: BatchReader(data, 100, shuffle=False, epochs=1),
        every_n_steps=4,
        best_metric="auc",
        early_stopping_min_delta=1.0,  # No evaluation improves as much.
    )
    config = dict(embedding=EmbeddingConfig(optimizer="dense_adam", l2=0.1, stddev=0.1), save_checkpoints_steps=10)
    estimator = deepfm.estimator(tmp_path, operation, (4,), **config)
    train_input = lambda position: BatchReader(data, 16, position=position, seed=5)  # noqa: E731
    with pytest.raises(Killed):
        estimator.train(train_input, [Rates(kill_after=11)], max_steps=15, evaluation=valid)
    assert rates[0] == pytest.approx(0.01)
    rates.clear()
    estimator.train(train_input, max_steps=12, evaluation=valid)
    assert rates == pytest.approx([0.005] * 3)  # The rate that is expected, and the rates of the steps 11 and 12.


def test_an_evaluation_within_training_reads_its_steps_checkpoint(data, tmp_path):
    estimator = _estimator(tmp_path, save_checkpoints_steps=5)
    valid = lambda: BatchReader(data, 100, shuffle=False, epochs=1)  # noqa: E731
    spec = TrainSpec(lambda position: BatchReader(data, 16, position=position, seed=5), max_steps=10)
    results, _ = train_and_evaluate(estimator, spec, EvalSpec(valid, every_n_steps=5))
    found = estimator.evaluate(valid, checkpoint_path=estimator.latest_checkpoint())
    assert results["logloss"] == pytest.approx(found["logloss"], rel=1e-6)


def test_rows_decay_by_l2_in_steps_whose_batches_lack_them(data, tmp_path):
    """The same first batch of 16 rows, then 11 others."""
    dense = _train(_estimator(tmp_path / "dense"), data)
    lazy = _train(_estimator(tmp_path / "lazy", "adam"), data)
    norms = [np.mean([np.square(row[:4]).sum() for row in rows.values()]) for rows in (dense, lazy)]
    assert norms[0] < 0.7 * norms[1]


class _Paused(BatchReader):
    """Two batches, and then padding, as that of a quiet stream."""

    def __iter__(self):
        for number, batch in enumerate(super().__iter__()):
            yield batch if number < 2 else dataclasses.replace(batch, size=0, **_nothing(batch))


def _nothing(batch):
    bags = {name: Bag(bag.values[:0], 0 * bag.splits) for name, bag in batch.bags.items()}
    weighted = {"topics": dataclasses.replace(bags["topics"], weights=batch.bags["topics"].weights[:0])}
    keys = {name: 0 * each for name, each in batch.keys.items()}
    return dict(keys=keys, bags=bags | weighted, weights=0 * batch.weights)


@pytest.mark.parametrize("optimizer", ["dense_sgd", "dense_adagrad", "dense_adam", "adam"])
def test_batches_of_padding_move_no_row(data, tmp_path, optimizer):
    trained = _train(_estimator(tmp_path / "trained", optimizer), data, 2, reader=_Paused)
    paused = _train(_estimator(tmp_path / "paused", optimizer), data, STEPS, reader=_Paused)
    assert paused.keys() == trained.keys()
    for key, row in trained.items():
        np.testing.assert_array_equal(paused[key][:5], row[:5])


def test_rows_that_cannot_make_up_for_steps_are_refused():
    with pytest.raises(SettingError, match="service=a:1 cannot: leave out service") as refused:
        EmbeddingConfig(optimizer="dense_adam", service="a:1")
    assert "--embedding_optimizer=dense_adam" in refused.value.by_flags
    config = EmbeddingConfig(optimizer="dense_adam")
    copies = RowCopies(LocalStore(), TableConfig("dim4", (4,), (0.1,), config.optimizer), "a")
    with pytest.raises(SettingError, match="not possible for rows in a service: train with one worker"):
        follow_steps(config, [copies], 0)
    limited = TableConfig("dim4", (4,), (0.1,), config.optimizer, max_rows=9)
    store = LocalStore()
    store.create_table(limited)
    with pytest.raises(SettingError, match=r"limits.* limit which keys of dim4 have rows: leave out one"):
        follow_steps(config, [TableRows(store.tables["dim4"])], 0)
    assert follow_steps(config, [copies], None) == []  # An evaluation only reads.


def test_a_warm_start_does_not_count_the_steps_of_another_training(data, tmp_path):
    _train(_estimator(tmp_path / "first"), data)
    rows = _train(_estimator(tmp_path / "second", warm_start=str(tmp_path / "first")), data, 5)
    assert {row[-1] for row in rows.values()} == {5}


def _table(**limits):
    return Table(TableConfig("t", (2, 1), (0.0, 0.0), "sgd", 1, **limits))


def _batch(table, keys, values):
    """Returns the gradients [v, v] and [v] for the two segments of each key."""
    keys, values = np.array(keys, np.int64), np.array(values, np.float32)[:, None]
    return [TableGradients(TableRows(table), keys, table.find_or_create(keys), [np.repeat(values, 2, 1), values])]


def _step(gradients, scale=1.0):
    for part in gradients.take(scale):
        part.rows.apply_gradients(part.keys, part.slots, part.sums, 1.0)


def _rows(table, *keys):
    return read(table, np.array(keys, np.int64)).tolist()


def test_micro_batches_are_summed_by_key_with_their_weights_and_scaled():
    table, gradients = _table(), RowGradients(1.0)
    gradients.add(_batch(table, [1, 2], [1.0, 2.0]), weight=3.0)
    gradients.add(_batch(table, [2, 3], [4.0, 8.0]), weight=1.0)
    _step(gradients, scale=0.5)
    assert _rows(table, 1, 2, 3) == [[-1.5] * 3, [-5.0] * 3, [-4.0] * 3]
    gradients.add(_batch(table, [1], [1.0]))
    _step(gradients)
    assert _rows(table, 1, 2) == [[-2.5] * 3, [-5.0] * 3]  # it started anew


def test_a_gradient_counts_its_weight_its_share_and_its_merge_factor():
    gradient = np.float32([[1, -2]])
    assert weighed(gradient, weight=4.0, share=0.5, merge_factor=3.0).tolist() == [[6, -12]]
    assert weighed(gradient, weight=4.0, share=0.25, merge_factor=1.0) is gradient  # No pass over it for a factor of 1.


def test_l2_is_of_each_distinct_row_once():
    table, gradients = _table(), RowGradients(1.0, l2=0.1)
    table.find_or_insert(np.array([1, 2]), np.array([[1, 2, 3], [4, 5, 6]], np.float32))
    gradients.add(_batch(table, [1], [0.0]))
    gradients.add(_batch(table, [1], [0.0]))
    _step(gradients)
    np.testing.assert_allclose(_rows(table, 1, 2), [[0.9, 1.8, 2.7], [4, 5, 6]], rtol=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "always", "once"), [(RowAdagrad(initial_accumulator=1e12), 0.25, 1), (RowSgd(), 1, 4)]
)
def test_l2_counts_against_a_rows_data_as_with_one_worker_with_all_batches(optimizer, always, once):
    """With a quarter of the gradient of each of four batches, or with SGD the whole gradient."""
    config, store = TableConfig("t", (1,), (0.0,), optimizer), LocalStore()
    cache = RowCopies(store, config, "a", Group(groups=4))
    for keys in ([1, 2], [1], [1]):
        slots = cache.find_or_create(np.array(keys))
        cache.apply_gradients(np.array(keys), slots, [np.zeros((len(keys), 1), np.float32)], 1.0)
    store.sync("t", np.array([1, 2]), np.eye(1, config.width, dtype=np.float32).repeat(2, 0) * 8, "another", 1)
    cache.sync()
    slots, gradients = cache.find_or_create(np.array([1, 2])), RowGradients(1.0, l2=0.5)
    gradients.add([TableGradients(cache, np.array([1, 2]), slots, [np.float32([[3], [3]])])])
    (part,) = gradients.take(1.0)
    assert part.sums[0].tolist() == [[3 + 0.5 * 8 * always], [3 + 0.5 * 8 * once]]


def test_clipping_is_by_the_norm_over_all_rows():
    table, gradients = _table(), RowGradients(1.0, clip_norm=1.0)
    gradients.add(_batch(table, [1, 2], [2.0, 1.0]))  # 3 * 4 + 3 * 1 = 15
    _step(gradients)
    norm = 15**0.5
    np.testing.assert_allclose(_rows(table, 1, 2), [[-2 / norm] * 3, [-1 / norm] * 3], rtol=1e-6)
    before = _rows(table, 1)
    gradients.add(_batch(table, [1], [0.5]))
    _step(gradients)
    np.testing.assert_allclose(_rows(table, 1), np.array(before) - 0.5, rtol=1e-6)


def test_a_row_evicted_within_the_step_takes_no_other_rows_slot():
    table, gradients = _table(max_rows=1), RowGradients(1.0)
    gradients.add(_batch(table, [1], [1.0]))
    gradients.add(_batch(table, [2], [8.0]))
    _step(gradients)
    assert _rows(table, 2) == [[-8.0] * 3]
    assert len(table) == 1
