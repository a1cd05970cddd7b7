"""The session of a training, an evaluation or a prediction."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1
from tensorflow.core.protobuf import config_pb2

from ctr_trainer.estimator import model_directory
from ctr_trainer.estimator.checkpoint import Checkpoint
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.messages.restoring import refusing_other_variables


def training_session(
    checkpoint: Checkpoint | None,
    hooks: list[tf1.train.SessionRunHook],
    model_dir: str,
    config: RunConfig,
    saver: tf1.train.Saver,
    given: tf1.train.Scaffold | None = None,
) -> tf1.train.MonitoredSession:
    """Creates the `MonitoredTrainingSession` of the current graph. A collective.

    Rank 0 restores the dense variables from the checkpoint that the file `checkpoint` in the model directory names, and
    then broadcasts its variables to all ranks. The session itself adds the `SummarySaverHook` of rank 0. `StepRate`
    replaces its `StepCounterHook`, and `CheckpointHook`, which saves dense variables and rows together, replaces its
    `CheckpointSaverHook`.

    Args:
      checkpoint: the `Checkpoint` to restore; None for the variables' initial values.
      model_dir: local directory for the summaries.
      given: the Scaffold of the `EstimatorSpec`, which initializes the variables, or None.

    Raises:
      UserError: the checkpoint does not have the graph's variables.
    """
    is_chief = distributed.is_chief()
    with _restored(checkpoint) as restored, refusing_other_variables(restored, tf1.global_variables()):
        return tf1.train.MonitoredTrainingSession(
            checkpoint_dir=model_directory.tensorflow_directory(restored, model_dir) if is_chief else None,
            summary_dir=model_dir if is_chief else None,
            scaffold=tf1.train.Scaffold(saver=saver, copy_from_scaffold=given),
            hooks=[distributed.broadcast_hook(), _OneSessionHook(), _PreparedRunsHook(), *hooks],
            config=distributed.session_config(config.threads, config.mixed_precision, config.session_config),
            save_checkpoint_secs=None,
            save_checkpoint_steps=None,
            log_step_count_steps=None,
            save_summaries_steps=config.summary_steps,
        )


def session_of(
    checkpoint: Checkpoint | None, hooks: Iterable[tf1.train.SessionRunHook], config: RunConfig
) -> tf1.train.MonitoredSession:
    """Creates the `MonitoredSession` of the current graph, to evaluate or predict with a checkpoint. A collective.

    Rank 0 restores the dense variables and broadcasts its variables to all ranks.

    Raises:
      UserError: the checkpoint does not have the graph's variables.
    """
    with _restored(checkpoint) as restored, refusing_other_variables(restored, tf1.global_variables()):
        creator = tf1.train.ChiefSessionCreator(
            tf1.train.Scaffold(saver=tf1.train.Saver(max_to_keep=None)),
            config=distributed.session_config(config.threads, given=config.session_config),
            # Not `checkpoint_dir`: its state file has the absolute path to which the checkpoint was first written.
            checkpoint_filename_with_path=restored.dense_prefix if restored else None,
        )
        return tf1.train.MonitoredSession(creator, [distributed.broadcast_hook(), _PreparedRunsHook(), *hooks])


@contextlib.contextmanager
def _restored(checkpoint: Checkpoint | None) -> Iterator[Checkpoint | None]:
    """Yields the `Checkpoint` with its dense variables in a local file; None without one and on ranks other than 0."""
    if checkpoint is None or not distributed.is_chief():
        yield None
        return
    with checkpoint.with_local_dense() as found:
        yield found


class _OneSessionHook(tf1.train.SessionRunHook):
    """Ends a training whose session was lost, because TensorFlow would restore variables older than the rows."""

    _made = False

    def after_create_session(self, session: tf1.Session, coord: Any) -> None:
        if self._made:
            raise UserError(
                "TensorFlow lost its session, and would resume with dense variables that are older than the rows. "
                "Restart the training: it resumes from its last checkpoint"
            )
        self._made = True


class _PreparedRunsHook(tf1.train.SessionRunHook):
    """Replaces the `run` of the session by `PreparedRuns`."""

    def after_create_session(self, session: tf1.Session, coord: Any) -> None:
        session.run = PreparedRuns(session)


class PreparedRuns:
    """A `run` for a session that parses equal fetches and feeds only once. Its results are the same.

    `tf.Session.run` parses its fetches and feeds in each call, which takes 0.5 ms of Python for the fetches of the
    training hooks. A step of DeepFM takes 7 ms. The session's own `run` still makes all runs with options, such as a
    trace, all runs whose fetches are not tensors and operations in dicts, lists and tuples, and all runs that it
    refuses.

    Args:
      session: the session, before its `run` is replaced.

    Source: the callables of TensorFlow's Keras backend. Caveat: `Session._make_callable_from_options` is not public.
    The public `Session.make_callable` prepares nothing if there are feeds.
    """

    def __init__(self, session: tf1.Session) -> None:
        self._session, self._run = session, session.run
        self._prepared: dict[tuple, _PreparedRun] = {}

    def __call__(
        self,
        fetches: Any,
        feed_dict: dict | None = None,
        options: tf1.RunOptions | None = None,
        run_metadata: tf1.RunMetadata | None = None,
    ) -> Any:
        """Runs as `tf.Session.run` does."""
        feeds = feed_dict or {}
        if options is None or not options.ByteSize():
            leaves: list = []
            key = (*_structure(fetches, leaves), *map(id, leaves), 0, *map(id, feeds))
            if key in self._prepared:
                return self._prepared[key](feeds.values())
            if self._can_prepare(leaves, feeds):
                self._prepared[key] = _PreparedRun(self._session, fetches, leaves, [*feeds])
                return self._prepared[key](feeds.values())
        return self._run(fetches, feed_dict, options, run_metadata)

    def _can_prepare(self, leaves: Sequence, feeds: Iterable) -> bool:
        """Returns whether all fetches and feeds are allowed in the session's graph, and one fetch is not fed.

        A callable finds tensors by their names. It would read the tensor of that name if a fetch belongs to another
        graph, and it cannot run without anything to fetch.
        """
        graph = self._session.graph
        if not all(
            isinstance(each, tf.Tensor | tf.Operation) and getattr(each, "graph", None) is graph
            for each in (*leaves, *feeds)
        ):
            return False
        feedable = all(isinstance(feed, tf.Tensor) and graph.is_feedable(feed) for feed in feeds)
        return feedable and all(map(graph.is_fetchable, leaves)) and not set(map(id, leaves)) <= set(map(id, feeds))


class _PreparedRun:
    """A run with fixed fetches and feeds. It keeps references to them, so that no other object gets their ids.

    Args:
      session: the session.
      fetches, leaves: the fetches, and the tensors and operations in them.
      feeds: tensors.
    """

    def __init__(self, session: tf1.Session, fetches: Any, leaves: Sequence, feeds: Sequence[tf.Tensor]) -> None:
        self._session, self._leaves = session, leaves
        self._feeds = [(feed, feed.dtype.as_numpy_dtype, feed.shape) for feed in feeds]
        options = config_pb2.CallableOptions(feed=[feed.name for feed in feeds])
        places = {id(feed): place for place, feed in enumerate(feeds)}  # Among the values of feeds and fetches.
        for leaf in {id(leaf): leaf for leaf in leaves}.values():
            if isinstance(leaf, tf.Operation):
                options.target.append(leaf.name)
                places[id(leaf)] = -1
            elif id(leaf) not in places:
                places[id(leaf)] = len(feeds) + len(options.fetch)
                options.fetch.append(leaf.name)
        self._callable = session._make_callable_from_options(options)
        self._results = _results_of(fetches, places)

    def __call__(self, values: Iterable[Any]) -> Any:
        fed = []
        for (feed, dtype, shape), value in zip(self._feeds, values, strict=True):
            value = np.asarray(value, dtype)
            if not shape.is_compatible_with(value.shape):
                raise ValueError(f"cannot feed a value of shape {value.shape} for {feed.name}, which is {shape}")
            fed.append(value)
        # Calls `_do_call`, as `Session.run` does, because its errors name the operation and where it was created.
        return self._results([*fed, *self._session._do_call(self._callable, *fed), None])


def _structure(fetches: Any, leaves: list) -> tuple:
    """Returns a key that identifies the structure of the fetches, and appends their leaves to `leaves`."""
    kind = type(fetches)
    if kind is dict:
        return kind, *fetches, *(_structure(part, leaves) for part in fetches.values())
    if kind is list or kind is tuple:
        return kind, *[_structure(part, leaves) for part in fetches]
    leaves.append(fetches)
    return ()


def _results_of(fetches: Any, places: dict[int, int]) -> Callable[[list], Any]:
    """Returns f(values) -> the structure of the fetches, with each tensor replaced by `values[places[id(tensor)]]`."""
    kind = type(fetches)
    if kind is dict:
        parts = {name: _results_of(part, places) for name, part in fetches.items()}
        return lambda values: {name: part(values) for name, part in parts.items()}
    if kind is list or kind is tuple:
        several = [_results_of(part, places) for part in fetches]
        return lambda values: kind(part(values) for part in several)
    place = places[id(fetches)]
    return lambda values: values[place]
