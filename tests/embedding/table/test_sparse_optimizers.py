"""Each sparse optimizer against its equations written out in NumPy, and against TensorFlow's sparse operations."""

import dataclasses
import json

import numpy as np
import pytest

from ctr_trainer.embedding.snapshot import snapshot
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.table.sparse_optimizers import OPTIMIZERS
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.settings.optimizers import ROW_OPTIMIZERS, RowAdagrad, RowAdam, RowAdamW, RowFtrl, RowMomentum
from ctr_trainer.system.messages.errors import UserError
from tests.row_optimizers import row_optimizer
from tests.rows import pulled

ROWS, STEPS, LEARNING_RATE, ACCUMULATOR = 7, 12, 0.05, 0.1
SETTINGS = dict(
    momentum=0.8,
    beta1=0.7,
    beta2=0.95,
    epsilon=1e-3,
    weight_decay=0.2,
    l1=0.02,
    l2=0.3,
    initial_accumulator=ACCUMULATOR,
)


def _table(optimizer, dims=(4, 1), scale=0.1, **options):
    optimizer = row_optimizer(optimizer, **{**SETTINGS, **options})
    return Table(TableConfig("t", dims, (scale,) * len(dims), optimizer))


def _batches(dims, least=1):
    """Yields (which of the rows a batch has, at least so many, and a gradient of each segment)."""
    rng = np.random.default_rng(1)
    for _ in range(STEPS):
        rows = rng.permutation(ROWS)[: rng.integers(least, ROWS + 1)]
        yield rows, [rng.normal(size=(len(rows), dim)).astype(np.float32) for dim in dims]


class _Segment:
    """One row's segment, in float64, stepped by the equations of the papers: with powers of beta, and counts."""

    def __init__(self, weights, settings):
        self.w, self.s = weights.astype(np.float64), settings
        self.t, self.u, self.m, self.v = 0, *np.zeros((3, len(weights)))
        self.acc = np.full(len(weights), ACCUMULATOR)
        # The z of which FTRL's w is the weights that the row starts with.
        if settings.name == "ftrl":
            self.z = -self.w * (np.sqrt(self.acc) / LEARNING_RATE + 2 * settings.l2) - np.sign(self.w) * settings.l1

    def sgd(self, g):
        self.w = self.w - LEARNING_RATE * g

    def momentum(self, g):
        self.u = self.s.momentum * self.u + g
        self.w = self.w - LEARNING_RATE * self.u

    def adagrad(self, g):
        self.acc = self.acc + g**2
        self.w = self.w - LEARNING_RATE * g / np.sqrt(self.acc)

    def rowwise_adagrad(self, g):
        self.acc = self.acc + np.mean(g**2)
        self.w = self.w - LEARNING_RATE * g / (np.sqrt(self.acc) + self.s.epsilon)

    def adam(self, g, decay=0.0):
        self.t += 1
        self.m = self.s.beta1 * self.m + (1 - self.s.beta1) * g
        self.v = self.s.beta2 * self.v + (1 - self.s.beta2) * g**2
        m, v = self.m / (1 - self.s.beta1**self.t), self.v / (1 - self.s.beta2**self.t)
        self.w = self.w * (1 - LEARNING_RATE * decay) - LEARNING_RATE * m / (np.sqrt(v) + self.s.epsilon)

    def adamw(self, g):
        self.adam(g, self.s.weight_decay)

    def ftrl(self, g):
        before, self.acc = self.acc, self.acc + g**2
        self.z = self.z + g - (np.sqrt(self.acc) - np.sqrt(before)) / LEARNING_RATE * self.w
        step = np.sqrt(self.acc) / LEARNING_RATE + 2 * self.s.l2
        self.w = np.where(np.abs(self.z) > self.s.l1, -(self.z - np.sign(self.z) * self.s.l1) / step, 0.0)


@pytest.mark.parametrize("optimizer", [name for name, each in OPTIMIZERS.items() if each.catch_up is None])
def test_steps_are_those_of_the_papers_and_rows_that_a_batch_lacks_stay(optimizer):
    dims = (4, 1)
    table = _table(optimizer, dims)
    slots = table.find_or_create(np.arange(1, ROWS + 1))
    expected = [
        [_Segment(row[:4], table.config.optimizer), _Segment(row[4:5], table.config.optimizer)] for row in table.stored
    ]
    for rows, gradients in _batches(dims):
        table.apply_gradients(slots[rows], gradients, LEARNING_RATE)
        for i, row in enumerate(rows):
            for segment, gradient in zip(expected[row], gradients, strict=True):
                getattr(segment, optimizer)(gradient[i].astype(np.float64))
    weights = [np.concatenate([segment.w for segment in segments]) for segments in expected]
    np.testing.assert_allclose(table.stored[:, :5], weights, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adagrad", "ftrl", "adam"])
def test_steps_are_those_of_tensorflows_sparse_operations(optimizer):
    """Adam's are if every batch has every row, since TensorFlow moves its moments of all rows."""
    tf = pytest.importorskip("tensorflow").compat.v1
    settings = row_optimizer(optimizer, **SETTINGS)
    makers = {
        "sgd": lambda: tf.train.GradientDescentOptimizer(LEARNING_RATE),
        "momentum": lambda: tf.train.MomentumOptimizer(LEARNING_RATE, settings.momentum),
        "adagrad": lambda: tf.train.AdagradOptimizer(LEARNING_RATE, ACCUMULATOR),
        "ftrl": lambda: tf.train.FtrlOptimizer(
            LEARNING_RATE,
            initial_accumulator_value=ACCUMULATOR,
            l1_regularization_strength=settings.l1,
            l2_regularization_strength=settings.l2,
        ),
        # Its epsilon stands beside the root of the uncorrected v, so it is of no weight here.
        "adam": lambda: tf.train.AdamOptimizer(LEARNING_RATE, epsilon=1e-8),
    }
    is_adam = optimizer == "adam"
    own = dict(beta1=0.9, beta2=0.999, epsilon=1e-7) if is_adam else {}
    # TensorFlow's FTRL forgets weights that it starts with.
    table = _table(optimizer, (4,), scale=0.0 if optimizer == "ftrl" else 0.1, **own)
    slots = table.find_or_create(np.arange(1, ROWS + 1))
    with tf.Graph().as_default(), tf.Session() as session:
        weights = tf.get_variable("w", initializer=tf.constant(table.stored[:, :4].copy()), use_resource=True)
        values, indices = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.int32, [None])
        step = makers[optimizer]().apply_gradients([(tf.IndexedSlices(values, indices), weights)])
        session.run(tf.global_variables_initializer())
        for rows, (gradient,) in _batches((4,), least=ROWS if is_adam else 1):
            session.run(step, {values: gradient, indices: rows})
            table.apply_gradients(slots[rows], [gradient], LEARNING_RATE)
        np.testing.assert_allclose(table.stored[:, :4], session.run(weights), rtol=1e-4 if is_adam else 1e-5, atol=1e-6)


def test_the_first_step_of_adam_is_the_learning_rate_against_the_gradients_sign():
    table = _table("adam", (2,), beta1=0.9, beta2=0.999, epsilon=1e-12)
    slots = table.find_or_create(np.array([5]))
    before = table.stored[0, :2].copy()
    table.apply_gradients(slots, [np.float32([[1e-3, -20.0]])], 0.5)
    np.testing.assert_allclose(table.stored[0, :2], before - [0.5, -0.5], rtol=1e-5)
    # m = 0.1 g, v = 0.001 g^2, and of both as much is there as their corrections say.
    np.testing.assert_allclose(table.stored[0, 2:], [1e-4, -2, 1e-9, 0.4, 0.1, 0.001], rtol=2e-5)


def test_ftrl_zeroes_what_l1_outweighs_and_lets_it_grow_again():
    table = _table("ftrl", (2,), l1=1.0, l2=0.0, initial_accumulator=0.0)
    slots = table.find_or_create(np.array([5]))
    table.apply_gradients(slots, [np.float32([[0.0, 0.0]])], 0.5)
    np.testing.assert_array_equal(table.stored, table.initial_rows(np.array([5])))
    table.find_or_insert(np.array([5]), np.zeros((1, 6), np.float32))
    # z = 3, so w = -(3 - 1) / (3 / 0.5); z = 0.75 stays below l1, at the second time it is 1.5 and n is 1.125.
    table.apply_gradients(slots, [np.float32([[3.0, 0.75]])], 0.5)
    np.testing.assert_allclose(table.stored[0, :2], [-1 / 3, 0.0], rtol=1e-5)
    table.apply_gradients(slots, [np.float32([[0.0, 0.75]])], 0.5)
    np.testing.assert_allclose(table.stored[0, :2], [-1 / 3, -0.5 / (np.sqrt(1.125) / 0.5)], rtol=1e-5)
    table.apply_gradients(slots, [np.float32([[3.0, 0.5]])], 0.0)
    assert np.isfinite(table.stored).all()


@pytest.mark.parametrize(
    ("optimizer", "state"),
    [
        ("sgd", []),
        ("momentum", [0] * 4),
        ("adagrad", [0.1] * 4),
        ("rowwise_adagrad", [0.1, 0.1]),
        ("adam", [0] * 3 + [0] * 3 + [0, 0] + [0, 0, 0, 0]),
        ("ftrl", [0] * 3 + [0.1] * 3 + [0, 0.1]),
    ],
)
def test_new_rows_start_with_the_state_laid_out_segment_by_segment(optimizer, state):
    config = TableConfig("t", (3, 1), (0.0, 0.0), row_optimizer(optimizer, initial_accumulator=0.1))
    assert (config.weights, config.state) == (4, len(state))
    np.testing.assert_array_equal(Table(config).initial_rows(np.array([3])), np.float32([[0] * 4 + state]))


def test_an_optimizer_is_one_that_the_flags_offer():
    with pytest.raises(ValueError, match="table t: optimizer 'lamb' is not one of sgd, .*adamw"):
        TableConfig("t", (2,), (0.1,), "lamb")
    assert tuple(ROW_OPTIMIZERS) == tuple(OPTIMIZERS)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (RowAdagrad, {"initial_accumulator": 0.0}),
        (RowAdam, {"beta1": 1.0}),
        (RowMomentum, {"momentum": -0.1}),
        (RowAdam, {"epsilon": 0.0}),
        (RowFtrl, {"l1": -1.0}),
    ],
)
def test_a_setting_out_of_range_is_refused(kind, settings):
    with pytest.raises(UserError, match=f"^{next(iter(settings))}=.* must be"):
        kind(**settings)


def test_settings_are_part_of_a_tables_json():
    config = TableConfig("t", (2,), (0.1,), RowAdamW(beta2=0.99, weight_decay=0.0))
    assert snapshot.config_from_json(snapshot.config_to_json(config)) == config
    with pytest.raises(UserError, match="not a table's configuration"):
        snapshot.config_from_json(json.dumps({**config.to_dict(), "settings": {"beta3": 0.5}}))


def test_a_snapshot_is_restored_with_other_settings_but_its_own_optimizer(tmp_path):
    store, config = LocalStore(), TableConfig("t", (2,), (0.1,), "adam")
    store.create_table(config)
    store.sync("t", np.array([4]), np.ones((1, config.width), np.float32), "w", 1)
    files = store.save(tmp_path, 1)
    other = LocalStore()
    other.create_table(dataclasses.replace(config, optimizer="ftrl"))
    with pytest.raises(UserError, match="table t is configured with optimizer = ftrl, but its rows .* saved with adam"):
        other.restore(tmp_path, files)
    faster = LocalStore()
    faster.create_table(dataclasses.replace(config, optimizer=RowAdam(beta1=0.5)))
    faster.restore(tmp_path, files)
    np.testing.assert_array_equal(pulled(faster, "t", np.array([4])), pulled(store, "t", np.array([4])))
    assert faster.tables["t"].config.optimizer.beta1 == 0.5
