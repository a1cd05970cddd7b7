import pytest
import tensorflow as tf

from ctr_trainer.hooks.exchange_hook import covered, exchange_share


def test_the_union_of_spans_counts_nothing_twice():
    assert covered([(5, 8), (0, 2), (1, 4), (6, 7)]) == 4 + 3
    assert covered([]) == 0


def _stats(*spans):
    stats = tf.compat.v1.RunMetadata().step_stats
    nodes = stats.dev_stats.add(device="cpu").node_stats
    for name, start, end in spans:
        nodes.add(node_name=name, timeline_label=name, all_start_micros=start, all_end_rel_micros=end - start)
    return stats


def test_the_exchange_counts_where_nothing_else_runs():
    stats = _stats(("deep/MatMul", 100, 140), ("HorovodAllreduce_grads", 130, 190), ("Assign", 190, 200))
    assert exchange_share(stats) == pytest.approx(50 / 100)
    assert exchange_share(_stats(("deep/MatMul", 100, 140))) is None
