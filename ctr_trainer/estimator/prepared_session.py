"""A session that prepares what it is asked to run again and again."""

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

tf1 = tf.compat.v1


class PreparedSessionCreator(tf1.train.ChiefSessionCreator):
    """Makes the sessions of a `MonitoredSession`, whose every step has the same fetches and feeds.

    `tf.Session.run` takes its fetches and feeds apart anew at each call, which for the fetches of a training's hooks is
    0.4 ms of Python, a twentieth of a step of DeepFM. Here an equal structure of fetches and feeds is prepared once,
    as a callable with equal results. A run that is traced, or that has fetches which are no tensors or operations in
    dicts, lists and tuples, is the session's own.

    Source: the callables of TensorFlow's Keras backend (`Session._make_callable_from_options`).
    """

    def create_session(self):
        session = super().create_session()
        # Not a wrapper around it: hooks and savers ask for an instance of `tf.Session`.
        session.run = _PreparedRuns(session)
        return session


def prepare(session, fetches):
    """Prepares a run without feeds that comes later, so that it does not wait for TensorFlow to optimize its graph.

    Args:
      session: of a `PreparedSessionCreator`; another one prepares nothing.
      fetches: as `tf.Session.run` takes them.
    """
    if isinstance(session.run, _PreparedRuns):
        session.run.prepared(fetches, {})


class _PreparedRuns:
    """The `run` of a session."""

    def __init__(self, session):
        self._session, self._run = session, session.run
        self._prepared = {}  # By structure.

    def __call__(self, fetches, feed_dict=None, options=None, run_metadata=None):
        if options is None or not options.ByteSize():
            feeds = feed_dict or {}
            if prepared := self.prepared(fetches, feeds):
                return prepared(feeds.values())
        return self._run(fetches, feed_dict, options, run_metadata)

    def prepared(self, fetches, feeds):
        """-> _Prepared, or None where that cannot be."""
        key = tuple(_description(fetches, [*map(id, feeds), len(feeds)]))
        if key not in self._prepared:
            self._prepared[key] = self._prepare(fetches, list(feeds))
        return self._prepared[key]

    def _prepare(self, fetches, feeds):
        leaves = list(_leaves(fetches))
        can_be = all(isinstance(leaf, (tf.Tensor, tf.Operation)) for leaf in leaves)
        can_be = can_be and all(isinstance(feed, tf.Tensor) for feed in feeds)
        return _Prepared(self._session, fetches, leaves, feeds) if can_be else None


class _Prepared:
    """One structure of fetches and feeds. It keeps what is in it, so that ids stay theirs.

    Args:
      session: the session.
      fetches, leaves: the structure, and the tensors and operations in it.
      feeds: tensors.
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

    def __call__(self, values):
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
