"""Runs TensorFlow operations on strings in NumPy arrays, so that conversion and exported graphs compute the same."""

import atexit
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


@functools.cache
def host_function(compute: Callable[..., Any], *settings: Any) -> Callable[[np.ndarray], Any]:
    """Makes f(bytes[n]) of `compute(texts, *settings)`, whose argument `texts` is string[n].

    The function has its own graph and session, so it works within any graph, with eager execution on or off, and in
    several threads at the same time.
    """
    import tensorflow as tf  # It takes seconds to import.

    with tf.Graph().as_default() as graph, tf.device("/CPU:0"):
        texts = tf.compat.v1.placeholder(tf.string, [None])
        fetches = compute(texts, *settings)
    flat = tf.nest.flatten(fetches)
    session = tf.compat.v1.Session(graph=graph, config=calling_thread_config())
    # The function may live as long as the process. At its end, TensorFlow would report that it cannot free the calls of
    # an open session, because its own modules are gone.
    atexit.register(session.close)
    run = prepared_call(session, [texts.name], [each.name for each in flat])
    return lambda given: tf.nest.pack_sequence_as(fetches, run(given))


def prepared_call(session: Any, feed: Sequence[str], fetch: Sequence[str]) -> Callable[..., list[np.ndarray]]:
    """Returns f(array of each fed tensor) -> arrays, which the calling thread computes.

    `Session.run`, and `make_callable` with feeds, look up each tensor by name at each call, which takes as long as a
    small computation. Keras also uses the method below.
    """
    from tensorflow.core.protobuf import config_pb2

    # With threads of its own, a session passes each call to one of them unless the call says otherwise.
    options = config_pb2.RunOptions(inter_op_thread_pool=-1)
    return session._make_callable_from_options(config_pb2.CallableOptions(feed=feed, fetch=fetch, run_options=options))


def calling_thread_config() -> Any:
    """Makes the options of a session without a GPU, each of whose operations uses one thread.

    TensorFlow's threads within operations belong to the process, and those between operations unless a session has its
    own: the first session decides how many a later training has. The package sets TF_OVERRIDE_GLOBAL_THREADPOOL, so
    that each session has its own.
    """
    import tensorflow as tf

    return tf.compat.v1.ConfigProto(
        device_count={"GPU": 0},
        intra_op_parallelism_threads=1,
        inter_op_parallelism_threads=-1,
        use_per_session_threads=True,
    )
