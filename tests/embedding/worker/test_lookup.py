import numpy as np
import pytest

from ctr_trainer.embedding.worker.lookup import Lookup

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)  # Slot s has the weights 3s, 3s + 1, 3s + 2.


def _bag(values, splits, combiner, weights=None):
    weights = None if weights is None else np.array(weights, np.float32)
    return np.array(values, np.int64), np.array(splits, np.int32), combiner, weights


def _gather(lookup, rows, slots, start, dim):
    weights = np.concatenate([rows, np.zeros_like(rows[:1])])[slots]  # The slot -1 has zeros.
    return lookup.gather(weights, start, dim)


def test_gather_reads_a_segment_and_zeros_for_no_value_and_for_an_unknown_key():
    lookup = Lookup(np.array([[5, 7], [7, 0]]))
    out = _gather(lookup, ROWS, np.array([2, 1]), 1, 2)
    np.testing.assert_array_equal(out, [[[7, 8], [4, 5]], [[4, 5], [0, 0]]])
    out = _gather(Lookup(np.array([[5, 7]])), ROWS, np.array([-1, 1]), 0, 3)
    np.testing.assert_array_equal(out, [[[0, 0, 0], [3, 4, 5]]])


@pytest.mark.parametrize(
    ("combiner", "second"), [("sum", [4, 6]), ("mean", [2, 3]), ("sqrtn", [4 / np.sqrt(2), 6 / np.sqrt(2)])]
)
def test_bags_are_pooled_over_their_values(combiner, second):
    # Keys 5, 7 have the slots 0, 1: the bag (5, 0, 7) pools [0, 1] and [4, 5] of ROWS[:, :2] plus no value.
    rows = np.float32([[0, 1], [4, 5]])
    lookup = Lookup(np.array([[5], [5], [0]]), [_bag([7, 5, 0, 7], [0, 1, 4, 4], combiner)])
    out = _gather(lookup, rows, np.array([0, 1]), 0, 2)
    np.testing.assert_allclose(out, [[[0, 1], [4, 5]], [[0, 1], second], [[0, 0], [0, 0]]], rtol=1e-6)


@pytest.mark.parametrize(("combiner", "share"), [("sum", 10), ("mean", 5), ("sqrtn", 10 / np.sqrt(2))])
def test_a_bags_gradient_goes_to_each_of_its_values(combiner, share):
    lookup = Lookup(np.array([[5], [7]]), [_bag([7, 5, 0], [0, 0, 3], combiner)])
    assert lookup.unique.tolist() == [5, 7]
    gradient = np.float32([[[1], [100]], [[2], [10]]])
    np.testing.assert_allclose(lookup.sum_gradients(1, gradient), [[1 + share], [2 + share]], rtol=1e-6)


def test_a_key_twice_in_a_bag_counts_twice():
    lookup = Lookup(np.zeros((1, 0), np.int64), [_bag([5, 5, 7, 7], [0, 4], "mean")])
    np.testing.assert_array_equal(_gather(lookup, np.float32([[4], [8]]), np.array([0, 1]), 0, 1), [[[6]]])
    np.testing.assert_array_equal(lookup.sum_gradients(1, np.float32([[[1]]])), [[0.5], [0.5]])


@pytest.mark.parametrize(
    ("combiner", "first", "second"), [("sum", 3, 2), ("mean", 0.75, 0.5), ("sqrtn", 3 / np.sqrt(14), 2 / np.sqrt(14))]
)
def test_a_weighted_bag_is_tensorflows(combiner, first, second):
    # Weights 3 and 2 of the keys 5 and 7, -1 of 5 again and 9 of no value: the sum is 4, that of squares 14.
    third = -first / 3
    bag = _bag([5, 7, 5, 0], [0, 4, 4], combiner, [3, 2, -1, 9])
    lookup = Lookup(np.zeros((2, 0), np.int64), [bag])
    out = _gather(lookup, np.float32([[1], [10]]), np.array([0, 1]), 0, 1)
    np.testing.assert_allclose(out, [[[first + 10 * second + third]], [[0]]], rtol=1e-6)
    summed = lookup.sum_gradients(1, np.float32([[[2]], [[100]]]))
    np.testing.assert_allclose(summed, [[2 * (first + third)], [2 * second]], rtol=1e-6)


@pytest.mark.parametrize("combiner", ["mean", "sqrtn"])
def test_weights_that_cancel_or_are_0_give_zeros(combiner):
    weights = [1, -1] if combiner == "mean" else [0, 0]
    lookup = Lookup(np.zeros((1, 0), np.int64), [_bag([5, 7], [0, 2], combiner, weights)])
    assert not _gather(lookup, np.float32([[1], [10]]), np.array([0, 1]), 0, 1).any()
    assert not lookup.sum_gradients(1, np.float32([[[2]]])).any()


def test_bad_combiners_splits_and_lengths_are_refused():
    with pytest.raises(ValueError, match="combiner 'max' is not one of sum, mean, sqrtn"):
        Lookup(np.zeros((1, 0), np.int64), [_bag([5], [0, 1], "max")])
    with pytest.raises(ValueError, match="column 1: the splits do not cut 2 values into 1 examples"):
        Lookup(np.array([[5]]), [_bag([7, 8], [0, 1], "sum")])
    with pytest.raises(ValueError, match="sequence 0: an example has 3 values, above its length of 2"):
        Lookup(np.array([[7]]), [], [_sequences([9, 7, 9], length=2)])


def _sequences(*lists, length):
    splits = np.cumsum([0, *map(len, lists)]).astype(np.int32)
    return np.array(sum(lists, []), np.int64), splits, length


def test_a_sequence_keeps_its_order_and_shares_the_batchs_keys():
    lookup = Lookup(np.array([[7], [0], [5]]), [], [_sequences([9, 7, 9], [], [0, 5], length=3)])
    assert lookup.unique.tolist() == [7, 5, 9]
    distinct = np.float32([[0, 1], [0, 2], [0, 0]])
    np.testing.assert_array_equal(lookup.gather(distinct, 1, 1)[:, 0, 0], [1, 0, 2])
    np.testing.assert_array_equal(lookup.gather_sequence(0, distinct, 1, 1)[..., 0], [[0, 1, 0], [0, 0, 0], [0, 2, 0]])
    distinct = np.float32([[1], [2], [3]])
    np.testing.assert_array_equal(lookup.gather_sequence(0, distinct, 0, 1)[..., 0], [[3, 1, 3], [0, 0, 0], [0, 2, 0]])


def test_a_sequences_gradients_go_to_its_own_keys():
    lookup = Lookup(np.array([[7], [0], [5]]), [], [_sequences([9, 7, 9], [], [0, 5], length=3)] * 2)
    of_sequence = np.arange(1, 10, dtype=np.float32).reshape(3, 3, 1)
    # 7: 2, 5: 8, 9: 1 + 3; the gradients at empty places, 4, 5, 6, 7 and 9, go nowhere.
    np.testing.assert_array_equal(lookup.sum_gradients(1, None, [of_sequence, None]), [[2], [8], [4]])
    pooled = np.float32([[[100]], [[200]], [[300]]])
    np.testing.assert_array_equal(lookup.sum_gradients(1, pooled, [of_sequence] * 2), [[104], [316], [8]])
    np.testing.assert_array_equal(lookup.sum_gradients(1, pooled), [[100], [300], [0]])


def test_a_sequence_is_pairs_of_its_examples_and_of_the_distinct_vectors():
    lookup = Lookup(np.array([[7], [0], [5]]), [], [_sequences([9, 7, 9], [], [0, 5], length=3)] * 2)
    distinct = np.float32([[0, 1], [0, 2], [0, 3]])
    vectors = lookup.vectors(distinct, 1, 1)
    np.testing.assert_array_equal(vectors, [[1], [2], [3], [0]])  # 7, 5, 9 and no value.
    assert vectors.ctypes.data % 64 == 0
    pairs = lookup.pairs(0)
    np.testing.assert_array_equal(pairs, [[0, 2], [0, 0], [0, 2], [2, 3], [2, 1]])
    assert pairs.ctypes.data % 64 == 0 and pairs.dtype == np.int32
    pooled, of_vectors = np.float32([[[100]], [[200]], [[300]]]), np.float32([[1], [2], [3], [9]])
    np.testing.assert_array_equal(lookup.sum_gradients(1, pooled, vectors=of_vectors), [[101], [302], [3]])
    with pytest.raises(ValueError, match=r"gradient of shape \(3, 1\), expected \(4, 1\)"):
        lookup.sum_gradients(1, pooled, vectors=of_vectors[:3])
    lookup = Lookup(np.array([[7], [5]]), [], [_sequences([], [], length=3)])
    assert lookup.pairs(0).shape == (0, 2)


@pytest.mark.parametrize("dim", [8, 1])
def test_gather_and_sum_are_numpys_on_a_random_batch(dim):
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 50, (64, 5))
    values, splits = rng.integers(0, 50, 300), np.append(0, np.sort(rng.integers(0, 301, 64)))
    splits[-1] = 300
    lookup = Lookup(keys, [(values, splits.astype(np.int32), "mean", None)])
    rows = rng.standard_normal((len(lookup.unique), 1 + dim)).astype(np.float32)
    row_of = {0: np.zeros(dim)} | {key: rows[slot, 1:] for slot, key in enumerate(lookup.unique.tolist())}
    expected = np.zeros((64, 6, dim))
    sums = {key: np.zeros(dim) for key in row_of}
    gradient = rng.standard_normal((64, 6, dim)).astype(np.float32)
    for b in range(64):
        for f in range(5):
            expected[b, f] = row_of[keys[b, f]]
            sums[keys[b, f]] += gradient[b, f]
        bag = [key for key in values[splits[b] : splits[b + 1]].tolist() if key]
        for key in bag:
            expected[b, 5] += row_of[key] / len(bag)
            sums[key] += gradient[b, 5] / len(bag)
    slots = np.arange(len(lookup.unique))
    np.testing.assert_allclose(_gather(lookup, rows, slots, 1, dim), expected, rtol=1e-5, atol=1e-6)
    summed = lookup.sum_gradients(dim, gradient)
    np.testing.assert_allclose(summed, [sums[key] for key in lookup.unique.tolist()], rtol=1e-5, atol=1e-5)
    vectors = lookup.gather(rows, 1, dim)
    fields = lookup.add_fields(vectors)
    both = np.concatenate([expected.sum(1), np.square(expected).sum((1, 2))[:, None]], 1)
    np.testing.assert_allclose(fields, both, rtol=1e-5, atol=1e-5)
    of_fields = rng.standard_normal(fields.shape).astype(np.float32)
    through_fields = of_fields[:, None, :dim] + 2 * of_fields[:, None, dim:] * vectors
    alone = lookup.sum_gradients(dim, None, fields=(of_fields, vectors))
    np.testing.assert_allclose(alone, lookup.sum_gradients(dim, through_fields), rtol=1e-4, atol=1e-4)
    summed = lookup.sum_gradients(dim, gradient, fields=(of_fields, vectors))
    np.testing.assert_allclose(summed, lookup.sum_gradients(dim, gradient + through_fields), rtol=1e-4, atol=1e-4)


def test_the_tensor_is_aligned_for_tensorflow_and_not_reused():
    lookup = Lookup(np.array([[5, 7], [7, 0]]))
    outs = [_gather(lookup, ROWS, np.array([2, 1]), 0, dim) for dim in (1, 2, 3, 1, 2, 3)]
    assert all(out.ctypes.data % 64 == 0 and out.flags.c_contiguous for out in outs)
    assert len({out.ctypes.data for out in outs}) == len(outs)


def test_a_batch_of_no_key_is_zeros():
    lookup = Lookup(np.zeros((2, 3), np.int64))
    assert lookup.unique.tolist() == []
    assert not _gather(lookup, ROWS, np.empty(0, np.int64), 0, 2).any()
    assert lookup.sum_gradients(2, np.ones((2, 3, 2), np.float32)).shape == (0, 2)
