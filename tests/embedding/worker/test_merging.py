import numpy as np
import pytest

from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.table.sparse_optimizers import OPTIMIZERS
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker import merging
from ctr_trainer.embedding.worker.row_copies import Group, RowCopies
from ctr_trainer.settings.optimizers import RowAdagrad, RowAdam, RowFtrl
from tests.row_optimizers import row_optimizer
from tests.rows import pulled

KEY = np.array([1])
LAZY = [name for name, each in OPTIMIZERS.items() if each.catch_up is None]  # Rows of the others are not copied.


def _workers(config, count=2, **options):
    store = LocalStore()
    return store, [RowCopies(store, config, f"w{k}", Group(groups=count), **options) for k in range(count)]


def _step(cache, gradient, learning_rate=1.0):
    cache.apply_gradients(KEY, cache.find_or_create(KEY), [np.float32([gradient])], learning_rate)


def _row(cache):
    return cache._copies.table.stored[cache.find_or_create(KEY)][0]


def _bounds(optimizer, workers):
    """Returns (least share, largest share, whether it is a slow average) for each float of a row of two weights."""
    found = merging.Shares(TableConfig("t", (2,), (0.0,), optimizer), workers)
    return list(zip(*found.bounds.tolist(), strict=True))


def test_sums_go_with_the_weights_and_averages_are_averaged():
    assert _bounds("adam", 1) == [(1, 1, 0)] * 8
    mean, average = (0.25, 0.25, 0), (0.25, 0.25, 1)
    # m[2], v[2], c1, c2: v and its weight c2 are the slow ones.
    assert _bounds("adam", 4) == [(0.25, 1, 0)] * 2 + [mean] * 2 + [average] * 2 + [mean, average]
    assert _bounds("rowwise_adagrad", 4) == [(0.25, 1, 0)] * 3
    assert _bounds("momentum", 4) == [mean] * 4


@pytest.mark.parametrize(
    ("rate", "share"), [(0.0, 1.0), (1.0, 0.25), (0.5, (1 - 0.5**4) / (4 * 0.5)), (0.1, (1 - 0.9**4) / (4 * 0.1))]
)
def test_adaptive_sends_as_many_steps_as_one_worker_would_make(rate, share):
    found = merging.Shares(TableConfig("t", (2,), (0.0,), "adagrad"), 4)
    assert found.by_rates(np.float32([rate])) == pytest.approx(share, rel=1e-6)


def test_a_slow_average_decays_as_in_the_steps_that_the_shares_represent():
    config = TableConfig("t", (1,), (0.0,), RowAdam(beta2=0.5))
    found = merging.Shares(config, 4)
    # 1 step of a rare row: 4 are made, so 1 - 0.5^4 of what it was is gone, of which each worker takes a quarter.
    # 2 steps of a row that all meet: 2 are made. 2 of one in between: 0.5 * 4 * 2 = 4.
    least, most, counts = found.bounds
    of, more = found.of(np.float32([1, 0.25, 0.5]), np.array([1, 2, 2]))
    shares = np.clip(of[:, None], least, most) + more[:, None] * counts
    rare, always, between = (1 - 0.5**4) / 0.5 / 4, 1 / 4, (1 - 0.5**4) / (1 - 0.5**2) / 4
    assert shares[:, [2, 4]] == pytest.approx(np.repeat([[rare], [always], [between]], 2, 1))  # v and c2
    assert shares[:, 0] == pytest.approx([1, 0.25, 0.5])
    assert (shares[:, [1, 3]] == 0.25).all()  # m and c1


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rare_rows_get_nearly_the_sum_and_frequent_rows_the_mean(dtype):
    config = TableConfig("t", (2,), (0.0,), RowFtrl(initial_accumulator=1e12), row_dtype=dtype)
    store, (cache, *_) = _workers(config, count=4)
    once, always = np.array([1]), np.array([2])
    sent = 0.0
    for number, rate in enumerate((0, 1 / 15, 2 / 23), start=1):  # One less than met, of one step less.
        sent += (1 - (1 - rate) ** 4) / (4 * rate) if rate else 1
        for step in range(8):
            keys = np.concatenate([always, once]) if step == 5 else always
            # Of such a sum of squares each step is the gradient.
            cache.apply_gradients(keys, cache.find_or_create(keys), [-np.ones((len(keys), 2), np.float32)], 1e6)
        cache.sync()
        np.testing.assert_allclose(pulled(store, "t", np.array([1, 2]))[:, 0], [sent, 2 * number], rtol=2e-3)
    np.testing.assert_allclose(cache.take(cache.find_or_create(always)), pulled(store, "t", always)[:, :2], rtol=2e-3)


def test_steps_beside_a_sync_are_counted_for_the_next():
    config = TableConfig("t", (1,), (0.0,), RowFtrl(initial_accumulator=1e12))
    store, (cache, *_) = _workers(config, count=4)
    carry_out = store.sync

    def and_meanwhile(*arguments):
        answer = carry_out(*arguments)
        store.sync = carry_out
        _step(cache, [-1.0], 1e6)
        return answer

    for _ in range(4):
        _step(cache, [-1.0], 1e6)
    store.sync = and_meanwhile
    cache.sync()
    assert _row(cache)[0] == pytest.approx(2.0)
    cache.sync()
    assert pulled(store, "t", KEY)[0, 0] == pytest.approx(1.25)  # It was met in each of 5 steps: a quarter again.


def test_the_sum_of_two_workers_rare_moves_is_what_both_have_after_their_syncs():
    config = TableConfig("t", (1,), (0.0,), RowAdagrad(initial_accumulator=1.0))
    store, (a, b) = _workers(config)
    _step(a, [np.sqrt(3)])  # acc 1 + 3 = 4, w = -sqrt(3) / 2
    _step(b, [np.sqrt(8)])  # acc 1 + 8 = 9, w = -sqrt(8) / 3
    a.sync()
    np.testing.assert_allclose(_row(a), [-np.sqrt(3) / 2, 4], rtol=1e-6)
    b.sync()
    merged = [-np.sqrt(3) / 2 - np.sqrt(8) / 3, 12]
    np.testing.assert_allclose(_row(b), merged, rtol=1e-6)
    a.sync()
    a.find_or_create(KEY)
    np.testing.assert_allclose(_row(a), merged, rtol=1e-6)
    np.testing.assert_array_equal(pulled(store, "t", KEY)[0], _row(a))


def test_a_repeated_sync_of_a_mean_applies_it_once():
    class Twice(LocalStore):
        def sync(self, *arguments):
            super().sync(*arguments)
            return super().sync(*arguments)

    store, config = Twice(), TableConfig("t", (1,), (0.0,), "sgd")
    cache = RowCopies(store, config, "a", Group(groups=4))
    for _ in range(3):
        _step(cache, [8.0])
        cache.sync()
    assert pulled(store, "t", KEY).tolist() == [[-6.0]]
    assert _row(cache).tolist() == [-6.0]


def test_adams_moments_stay_weighted_means_of_the_gradients_whoever_has_stepped():
    """Averages of moments: after syncs of one, then of both, m / c1 lies between the gradients."""
    config = TableConfig("t", (1,), (0.0,), "adam")
    store, (a, b) = _workers(config)
    _step(a, [2.0], 0.5)
    a.sync()
    weight, m, v, c1, c2 = pulled(store, "t", KEY)[0]
    assert weight == pytest.approx(-0.5)
    assert (m / c1, v / c2) == pytest.approx((2.0, 4.0), rel=1e-5)
    for _ in range(50):
        _step(a, [2.0], 0.0)
        _step(b, [4.0], 0.0)
        a.sync()
        b.sync()
    _, m, v, c1, c2 = pulled(store, "t", KEY)[0]
    assert c1 == pytest.approx(1, abs=0.02)
    assert m / c1 == pytest.approx(3.0, rel=0.01)
    assert v / c2 == pytest.approx((4 + 16) / 2, rel=0.05)


@pytest.mark.parametrize("optimizer", LAZY)
def test_every_optimizer_stays_near_the_minimum_with_long_windows(optimizer):
    """min (w - 1)^2 / 2 with noise, 8 workers of which each syncs after 20 steps, in turn."""
    config = TableConfig("t", (1,), (0.0,), row_optimizer(optimizer, initial_accumulator=0.1))
    factor = merging.gradient_factor(optimizer, 8, 1.0, copies=8)
    job = {"sgd": 0.01, "momentum": 0.001, "adam": 0.01, "adamw": 0.01}.get(optimizer, 0.05)
    store, workers = _workers(config, count=8)
    rng = np.random.default_rng(0)
    for step in range(1, 201):
        for k, worker in enumerate(workers):
            slots = worker.find_or_create(KEY)
            gradient = worker.take(slots) - 1 + rng.normal(scale=0.5, size=(1, 1))
            worker.apply_gradients(KEY, slots, [(factor * gradient).astype(np.float32)], job)
            if (step + 20 * k // 8) % 20 == 0:
                worker.sync()
    assert pulled(store, "t", KEY)[0, 0] == pytest.approx(1.0, abs=0.25)


def test_what_a_gradient_counts_for():
    # Of 4 workers that share one batch, `scale` is 1; of 4 with a batch each it is 4.
    factors = {
        optimizer: [merging.gradient_factor(optimizer, 4, scale, copies) for scale, copies in ((1, 4), (4, 4), (4, 1))]
        for optimizer in ("momentum", "adam")
    }
    assert factors == {"momentum": [1, 4, 1], "adam": [0.25, 1, 1]}


@pytest.mark.parametrize("optimizer", LAZY)
def test_a_row_that_one_of_four_workers_meets_steps_as_with_all_four_batches(optimizer):
    config = TableConfig("t", (2,), (0.1,), row_optimizer(optimizer, initial_accumulator=0.1))
    store, (worker, *_) = _workers(config, count=4)
    alone, factor = Table(config), merging.gradient_factor(optimizer, 4, 1.0, copies=4)
    of_own_batch = np.float32([4.0, -8.0])
    _step(worker, factor * of_own_batch)
    alone.apply_gradients(alone.find_or_create(KEY), [of_own_batch[None] / 4], 1.0)
    worker.sync()
    np.testing.assert_allclose(pulled(store, "t", KEY)[:, :2], alone.stored[:, :2], rtol=1e-5)
