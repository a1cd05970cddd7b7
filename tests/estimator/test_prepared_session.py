import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.estimator.prepared_session import PreparedSessionCreator

tf1 = tf.compat.v1


@pytest.fixture
def graph():
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        yield


def _session(hooks=()):
    return tf1.train.MonitoredSession(PreparedSessionCreator(), hooks)


def _own_runs(session, monkeypatch):
    """-> list that grows with each run that the session takes apart by itself."""
    runs, run = [], tf1.Session._run

    def counted(self, *arguments):
        runs.append(arguments)
        return run(self, *arguments)

    monkeypatch.setattr(tf1.Session, "_run", counted)
    return runs


def test_equal_runs_are_prepared_and_have_the_results_of_the_session_itself(graph, monkeypatch):
    fed = tf1.placeholder(tf.float32, [None, 2], "fed")
    total, count = tf.reduce_sum(fed), tf1.get_variable("count", [], tf.int64, tf1.zeros_initializer())
    counted = count.assign_add(1)
    fetches = {"sum": total, "parts": [fed, (total, counted.op)], "op": counted.op, "none": []}
    with _session() as session:
        runs = _own_runs(session, monkeypatch)
        for number in range(1, 6):
            values = np.full((number, 2), number)
            found = session.run(fetches, {fed: values})
            assert (found["sum"], found["op"], found["none"]) == (2 * number**2, None, [])
            np.testing.assert_array_equal(found["parts"][0], values)
            assert found["parts"][0].dtype == np.float32
            assert found["parts"][1] == (2 * number**2, None)
            assert not runs
        assert session.run(count) == 5
        # Another structure of the same tensors, then without a feed.
        assert [session.run([total], {fed: np.ones((1, 2))}) for _ in range(3)] == [[2.0]] * 3
        with pytest.raises(tf.errors.InvalidArgumentError, match="fed"):
            session.run([total])


def test_each_hook_gets_its_own_values(graph):
    step = tf1.train.get_global_step()
    advance, twice = step.assign_add(1), 2 * step

    class Hook(tf1.train.SessionRunHook):
        def __init__(self, fetches):
            self.fetches, self.seen = fetches, []

        def before_run(self, run_context):
            return tf1.train.SessionRunArgs(self.fetches)

        def after_run(self, run_context, run_values):
            self.seen.append(run_values.results)

    hooks = [Hook(advance), Hook({"a": advance, "b": [advance.op]}), Hook(None)]
    with _session(hooks) as session:
        for _ in range(4):
            session.run(advance.op)
        assert session.run_step_fn(lambda step_context: step_context.session.run(twice)) == 8
    assert hooks[0].seen == [1, 2, 3, 4]
    assert hooks[1].seen == [{"a": n, "b": [None]} for n in (1, 2, 3, 4)]
    assert hooks[2].seen == [None] * 4


def test_a_wrong_shape_is_refused_and_an_error_names_its_operation(graph):
    fed = tf1.placeholder(tf.float32, [2], "fed")
    checked = tf1.check_numerics(fed, "not a number", name="the_check")
    with _session() as session:
        for _ in range(3):
            session.run(checked, {fed: [1, 2]})
        with pytest.raises(ValueError, match=r"shape \(3,\) for fed:0, which is \(2,\)"):
            session.run(checked, {fed: [1, 2, 3]})
        with pytest.raises(tf.errors.InvalidArgumentError, match="not a number") as caught:
            session.run(checked, {fed: [1, np.nan]})
        assert caught.value.op is checked.op


def test_a_traced_run_leaves_its_trace(graph, monkeypatch):
    total = tf.reduce_sum(tf.ones([2]), name="the_sum")
    with _session() as session:
        for _ in range(3):
            session.run(total)
        metadata = tf1.RunMetadata()
        session.run(total, options=tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE), run_metadata=metadata)
    assert metadata.step_stats.dev_stats


def test_other_fetches_and_feeds_run_as_the_session_takes_them(graph, monkeypatch):
    sparse = tf1.sparse_placeholder(tf.float32, [3])
    total = tf1.sparse_reduce_sum(sparse)
    variable = tf1.get_variable("variable", [], initializer=tf1.ones_initializer())
    with _session() as session:
        runs = _own_runs(session, monkeypatch)
        for number in range(1, 5):
            fed = tf1.SparseTensorValue([[1]], [float(number)], [3])
            assert session.run([total], {sparse: fed}) == [number]
            assert session.run({"by_name": total.name}, {sparse: fed}) == {"by_name": number}
            assert session.run(variable) == 1
            assert len(runs) == 3 * number
