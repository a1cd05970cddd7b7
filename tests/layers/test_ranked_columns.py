"""Layers that take the columns of a ranking request: their rounding errors, against float64."""

import numpy as np
import tensorflow as tf

from ctr_trainer.features.ranked import RankedBlock, RankedColumns
from ctr_trainer.layers.interactions import fm
from tests.layers.run import vectors

tf1 = tf.compat.v1


def _blocks(context, candidates, columns, width):
    """Returns the ranked columns of blocks of `width` features each, and float32[n, F, dim] of all of them."""
    blocks, expanded = [], []
    for start in range(0, columns.size, width):
        split = context.shape[1] * width // columns.size
        place, own = start // width * split, start // width * (width - split)
        shared, others = context[:, place : place + split], candidates[:, own : own + width - split]
        order = columns[start : start + width] - start
        full = np.empty((len(candidates), width, context.shape[2]), np.float32)
        full[:, order[:split]], full[:, order[split:]] = shared, others
        blocks.append(RankedBlock(*map(tf.constant, (shared, others, order)), width, context.shape[2]))
        expanded.append(full)
    return RankedColumns(tuple(blocks)), np.concatenate(expanded, 1)


def test_pairs_of_a_context_and_its_candidates_are_rounded_no_worse_than_those_of_expanded_rows():
    errors = np.zeros(2)
    for seed in range(10):
        for width in (24, 12):
            order = np.random.default_rng(seed)
            columns = np.concatenate([start + order.permutation(width) for start in range(0, 24, width)])
            with tf.Graph().as_default(), tf1.Session() as session:
                context, candidates = vectors(1, 18, 16, seed=seed), vectors(50, 6, 16, seed=seed + 100)
                ranked, full = _blocks(context, candidates, columns.astype(np.int32), width)
                np.testing.assert_array_equal(session.run(ranked.expanded()), full.reshape(50, -1))
                found = session.run([fm(ranked), fm(tf.constant(full))])
            exact = full.astype(np.float64)
            exact = 0.5 * (np.square(exact.sum(1)).sum(1) - np.square(exact).sum((1, 2)))[:, None]
            errors += [np.square(each - exact).sum() for each in found]
    assert errors[0] <= errors[1]
