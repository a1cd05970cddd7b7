import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.estimator.prepared_runs import prepare, run_steps

tf1 = tf.compat.v1


@pytest.fixture
def graph():
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        yield


def _with_runs(loop, hooks=(), prepared=True):
    """Calls loop(runs) within a session that has the hooks."""
    with tf1.train.MonitoredSession(hooks=hooks) as session:
        run_steps(session, hooks, loop, prepared)


def _own_runs(monkeypatch):
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
    counted, counts = count.assign_add(1), count.read_value()
    fetches = {"sum": total, "parts": [fed, (total, counted.op)], "op": counted.op, "none": []}

    def loop(session):
        runs = _own_runs(monkeypatch)
        for number in range(1, 6):
            values = np.full((number, 2), number)
            found = session.run(fetches, {fed: values})
            assert (found["sum"], found["op"], found["none"]) == (2 * number**2, None, [])
            np.testing.assert_array_equal(found["parts"][0], values)
            assert found["parts"][0].dtype == np.float32
            assert found["parts"][1] == (2 * number**2, None)
        # Another structure of the same tensors, then without a feed.
        assert [session.run([total], {fed: np.ones((1, 2))}) for _ in range(3)] == [[2.0]] * 3
        assert session.run(counts) == 5
        assert not runs
        with pytest.raises(tf.errors.InvalidArgumentError, match="fed"):
            session.run([total])

    _with_runs(loop)


class _Hook(tf1.train.SessionRunHook):
    """Fetches something, keeps what it got, and asks to stop after some runs."""

    def __init__(self, fetches, feed=None, stop_after=None):
        self._args, self._stop_after, self.seen, self.calls = (fetches, feed), stop_after, [], []

    def begin(self):
        self.calls.append("begin")

    def after_create_session(self, session, coord):
        self.calls.append("session")

    def before_run(self, run_context):
        assert run_context.original_args.fetches.name == "advance"
        return tf1.train.SessionRunArgs(*self._args)

    def after_run(self, run_context, run_values):
        self.seen.append(run_values.results)
        if len(self.seen) == self._stop_after:
            run_context.request_stop()

    def end(self, session):
        self.calls.append("end")


@pytest.mark.parametrize("prepared", [True, False])
def test_hooks_get_their_own_values_feed_and_stop_as_those_of_a_session_do(graph, prepared):
    step, fed = tf1.train.get_global_step(), tf1.placeholder(tf.int64, [])
    advanced = step.assign_add(1)
    advance = tf.group(advanced, name="advance")
    hooks = [_Hook(advanced), _Hook({"a": advanced + fed, "b": [advance]}, {fed: 10}), _Hook(None, None, 4)]
    ran = []

    def loop(session):
        while not session.should_stop():
            ran.append(session.run(advance))

    _with_runs(loop, hooks, prepared)
    assert ran == [None] * 4
    assert hooks[0].seen == [1, 2, 3, 4]
    assert hooks[1].seen == [{"a": n + 10, "b": [None]} for n in (1, 2, 3, 4)]
    assert hooks[2].seen == [None] * 4
    assert all(hook.calls == ["begin", "session", "end"] for hook in hooks)


@pytest.mark.parametrize("prepared", [True, False])
def test_two_hooks_that_feed_one_tensor_are_refused(graph, prepared):
    fed = tf1.placeholder(tf.int64, [], "fed")
    advance = tf.group(fed, name="advance")
    hooks = [_Hook(None, {fed: 1}), _Hook(None, {fed: 2})]
    with pytest.raises(RuntimeError, match="fed"):
        _with_runs(lambda session: session.run(advance), hooks, prepared)


@pytest.mark.parametrize("prepared", [True, False])
def test_the_end_of_an_input_ends_the_steps_and_calls_the_hooks(graph, prepared):
    data = tf1.data.make_one_shot_iterator(tf.data.Dataset.range(3)).get_next()
    advance = tf.group(data, name="advance")
    hook = _Hook(data)

    def loop(session):
        while not session.should_stop():
            session.run(advance)

    _with_runs(loop, [hook], prepared)
    assert (hook.seen, hook.calls[-1]) == ([0, 1, 2], "end")


def test_a_wrong_shape_is_refused_and_an_error_names_its_operation(graph):
    fed = tf1.placeholder(tf.float32, [2], "fed")
    checked = tf1.check_numerics(fed, "not a number", name="the_check")

    def loop(session):
        for _ in range(3):
            session.run(checked, {fed: [1, 2]})
        with pytest.raises(ValueError, match=r"shape \(3,\) for fed:0, which is \(2,\)"):
            session.run(checked, {fed: [1, 2, 3]})
        with pytest.raises(tf.errors.InvalidArgumentError, match="not a number") as caught:
            session.run(checked, {fed: [1, np.nan]})
        assert caught.value.op is checked.op

    _with_runs(loop)


@pytest.mark.parametrize("prepared", [True, False])
def test_a_run_that_a_hook_traces_leaves_its_trace(graph, prepared):
    total = tf.reduce_sum(tf.ones([2]), name="the_sum")
    seen = []

    class Traced(tf1.train.SessionRunHook):
        def before_run(self, run_context):
            return tf1.train.SessionRunArgs(None, options=tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE))

        def after_run(self, run_context, run_values):
            seen.append((run_values.options.trace_level, len(run_values.run_metadata.step_stats.dev_stats)))

    _with_runs(lambda session: session.run(total), [Traced()], prepared)
    (level, devices), *rest = seen
    assert (level, rest) == (tf1.RunOptions.FULL_TRACE, [])
    assert devices > 0


def test_other_fetches_and_feeds_run_as_the_session_takes_them(graph, monkeypatch):
    sparse = tf1.sparse_placeholder(tf.float32, [3])
    total = tf1.sparse_reduce_sum(sparse)
    variable = tf1.get_variable("variable", [], initializer=tf1.ones_initializer())

    def loop(session):
        runs = _own_runs(monkeypatch)
        for number in range(1, 5):
            fed = tf1.SparseTensorValue([[1]], [float(number)], [3])
            assert session.run([total], {sparse: fed}) == [number]
            assert session.run({"by_name": total.name}, {sparse: fed}) == {"by_name": number}
            assert session.run(variable) == 1
            assert len(runs) == 3 * number

    _with_runs(loop)


def test_what_cannot_be_prepared_is_not(graph):
    variable = tf1.get_variable("variable", [], initializer=tf1.ones_initializer())
    with tf1.Session() as session:
        session.run(variable.initializer)
        assert prepare(session, "variable:0") is None
        assert prepare(session, {"twice": 2 * variable})() == {"twice": 2.0}
