"""The session of a training, an evaluation or a prediction."""

import tensorflow as tf

from ctr_trainer import distributed
from ctr_trainer.estimator.prepared_session import PreparedSessionCreator
from ctr_trainer.restoring import refusing_other_variables

tf1 = tf.compat.v1


def open_session(checkpoint, hooks, threads, saver=None, precision="none"):
    """-> the `MonitoredSession` of the current graph: rank 0 restores the dense variables, then all ranks get its.

    A collective.

    Args:
      checkpoint: the `Checkpoint` to restore; None for the variables' initial values.
      hooks: of the session.
      threads, precision: of `distributed.session_config`.
      saver: of the dense variables; by default of all.

    Raises:
      UserError: the checkpoint has not the graph's variables.
    """
    restore = checkpoint is not None and distributed.is_chief()
    creator = PreparedSessionCreator(
        tf1.train.Scaffold(saver=saver or tf1.train.Saver(max_to_keep=None)),
        config=distributed.session_config(threads, precision),
        # Not by its directory: there TensorFlow keeps the absolute path that it was first written to.
        checkpoint_filename_with_path=checkpoint.dense_prefix if restore else None,
    )
    with refusing_other_variables(checkpoint if restore else None, tf1.global_variables()):
        return tf1.train.MonitoredSession(creator, [distributed.broadcast_hook(), *hooks])
