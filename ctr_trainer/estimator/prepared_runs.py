"""The runs of a session's steps, prepared once: every step has the same fetches and feeds."""

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

tf1 = tf.compat.v1


def run_steps(session, hooks, loop, prepared=True):
    """Calls loop(runs), whose `runs.run(fetches)` is a step with the hooks, until `runs.should_stop()`.

    Not prepared, `runs` is the session itself. Prepared, it is a `PreparedRuns` on the raw session, which
    `MonitoredSession.run_step_fn` hands out.

    Args:
      session: a `MonitoredSession`.
      hooks: all that the session has, in its order.
      loop: f(runs).
      prepared: whether to prepare the runs.
    """
    if prepared:
        session.run_step_fn(lambda step_context: loop(PreparedRuns(session, step_context.session, hooks)))
    else:
        loop(session)


class PreparedRuns:
    """`run` and `should_stop` of a `MonitoredSession`, with its hooks and equal results.

    `tf.Session.run` takes its fetches and feeds apart anew at each call, which for the fetches of a training's hooks is
    0.4 ms of Python, a twentieth of a step of DeepFM. Here an equal structure of fetches and feeds is prepared once. A
    run that a hook traces, or that has fetches which are no tensors or operations in dicts, lists and tuples, is the
    raw session's own. What a hook itself runs is the session's own as well.

    Source: `tensorflow.python.training.monitored_session._HookedSession`, for the order of calls.
    """

    def __init__(self, monitored, raw, hooks):
        self._monitored, self._raw, self._hooks = monitored, raw, list(hooks)
        self._stop = False
        self._prepared = {}  # By structure.

    def should_stop(self):
        return self._stop or self._monitored.should_stop()

    def run(self, fetches, feed_dict=None):
        """As `MonitoredSession.run`."""
        context = tf1.train.SessionRunContext(tf1.train.SessionRunArgs(fetches, feed_dict), self._raw)
        wanted, feeds, options = {"caller": fetches}, dict(feed_dict or {}), None
        for hook in self._hooks:
            asked = hook.before_run(context)
            if asked is None:
                continue
            if asked.fetches is not None:
                wanted[hook] = asked.fetches
            if asked.feed_dict:
                if both := feeds.keys() & asked.feed_dict.keys():
                    raise RuntimeError(
                        f"{type(hook).__name__} feeds what is fed already: {sorted(t.name for t in both)}"
                    )
                feeds.update(asked.feed_dict)
            if asked.options is not None and asked.options.ByteSize():
                options = options or tf1.RunOptions()
                options.MergeFrom(asked.options)
        metadata = tf1.RunMetadata()
        results = self._run(wanted, feeds, options, metadata)
        options = options or tf1.RunOptions()
        for hook in self._hooks:
            hook.after_run(context, tf1.train.SessionRunValues(results.get(hook), options, metadata))
        self._stop = self._stop or context.stop_requested
        return results["caller"]

    def _run(self, fetches, feeds, options, metadata):
        if options is None:
            key = tuple(_description(fetches, [*map(id, feeds), len(feeds)]))
            if key not in self._prepared:
                self._prepared[key] = prepare(self._raw, fetches, list(feeds))
            if prepared := self._prepared[key]:
                return prepared(*feeds.values())
        return self._raw.run(fetches, feeds, options, metadata)


def prepare(session, fetches, feeds=()):
    """-> f(*values) with the results of `session.run(fetches, dict(zip(feeds, values)))`; None where it cannot be.

    TensorFlow optimizes the graph of these fetches here, and not when they are run for the first time.

    Args:
      session: a `tf.compat.v1.Session`.
      fetches: tensors and operations in dicts, lists and tuples.
      feeds: tensors.
    """
    leaves = list(_leaves(fetches))
    can_be = all(isinstance(leaf, (tf.Tensor, tf.Operation)) for leaf in leaves)
    can_be = can_be and all(isinstance(feed, tf.Tensor) for feed in feeds)
    return _Prepared(session, fetches, leaves, feeds) if can_be else None


class _Prepared:
    """One structure of fetches and feeds. It keeps what is in it, so that ids stay theirs.

    Caveat: `Session._make_callable_from_options` is not public; `Session.make_callable`, which is, prepares nothing
    where there are feeds.

    Args:
      session: the session.
      fetches, leaves: the structure, and the tensors and operations in it.
      feeds: tensors.

    Source: the callables of TensorFlow's Keras backend.
    """

    def __init__(self, session, fetches, leaves, feeds):
        self._session = session
        self._feeds = [(feed, feed.dtype.as_numpy_dtype, feed.shape) for feed in feeds]
        fed = {id(feed): place for place, feed in enumerate(feeds)}
        options = config_pb2.CallableOptions(feed=[feed.name for feed in feeds])
        places = {}  # In the values of the feeds, then of the fetches, then None.
        for leaf in {id(leaf): leaf for leaf in leaves}.values():
            if isinstance(leaf, tf.Operation):
                options.target.append(leaf.name)
            elif id(leaf) in fed:
                places[id(leaf)] = fed[id(leaf)]
            else:
                places[id(leaf)] = len(feeds) + len(options.fetch)
                options.fetch.append(leaf.name)
        self._callable = session._make_callable_from_options(options)
        self._leaves = leaves
        self._build = _builder(fetches, places)

    def __call__(self, *values):
        fed = []
        for (feed, dtype, shape), value in zip(self._feeds, values, strict=True):
            value = np.asarray(value, dtype)
            if not shape.is_compatible_with(value.shape):
                raise ValueError(f"cannot feed a value of shape {value.shape} for {feed.name}, which is {shape}")
            fed.append(value)
        # As `Session.run` does, so that an error names the operation and where it was made.
        return self._build([*fed, *self._session._do_call(self._callable, *fed), None])


def _description(fetches, key):
    """Appends to `key` what tells these fetches from others. -> key"""
    kind = type(fetches)
    if kind is dict:
        key.extend(fetches)
        fetches = fetches.values()
    elif kind is not list and kind is not tuple:
        key.append(id(fetches))
        return key
    key += (kind, len(fetches))
    for part in fetches:
        _description(part, key)
    return key


def _leaves(fetches):
    """Yields what is in the dicts, lists and tuples."""
    if type(fetches) not in (dict, list, tuple):
        yield fetches
        return
    for part in fetches.values() if type(fetches) is dict else fetches:
        yield from _leaves(part)


def _builder(fetches, places):
    """-> f(values), the structure with values[places[id(tensor)]] for a tensor and values[-1] for an operation."""
    kind = type(fetches)
    if kind is dict:
        parts = {name: _builder(part, places) for name, part in fetches.items()}
        return lambda values: {name: part(values) for name, part in parts.items()}
    if kind in (list, tuple):
        parts = [_builder(part, places) for part in fetches]
        return lambda values: kind(part(values) for part in parts)
    place = places.get(id(fetches), -1)
    return lambda values: values[place]
