"""The file `checkpoint` of a model directory, by which TensorFlow finds the dense variables that were saved last."""

import os

import tensorflow as tf

from ctr_trainer.estimator.checkpoint import BEST, RECENT
from ctr_trainer.files import durable_file
from ctr_trainer.files.paths import is_local
from ctr_trainer.messages.errors import UserError

tf1 = tf.compat.v1
_NAME = "checkpoint"


def point_to(model_dir, checkpoint):
    """Has `tf.train.latest_checkpoint(model_dir)` find the dense variables of a `Checkpoint`; of None, nothing.

    Does nothing for a model directory in a store, where TensorFlow does not look.

    Raises:
      UserError: the file is of another program, whose checkpoints would no longer be found; or cannot be written.
    """
    if not is_local(model_dir):
        return
    path = os.path.join(model_dir, _NAME)
    if os.path.lexists(path):
        _refuse_foreign(path)
    if checkpoint is not None:
        prefix = os.path.relpath(checkpoint.dense_prefix, model_dir)  # So that the directory can be moved.
        state = tf1.train.generate_checkpoint_state_proto(os.path.abspath(model_dir), prefix, [prefix])
        durable_file.write_text(path, str(state))
    elif os.path.lexists(path):
        os.remove(path)


def directory_of(checkpoint, model_dir):
    """-> the directory by whose file `checkpoint` TensorFlow finds a `Checkpoint` with local dense variables.

    Args:
      checkpoint: the `Checkpoint` that `point_to` named last, or None.
      model_dir: local directory of the model; of one in a store, a directory without the file.
    """
    if checkpoint is None or is_local(checkpoint.path):
        return model_dir
    tf1.train.update_checkpoint_state(checkpoint.dense_directory, checkpoint.dense_prefix)
    return checkpoint.dense_directory


def _refuse_foreign(path):
    state = tf.train.get_checkpoint_state(os.path.dirname(path))
    own = tuple(os.path.join(os.path.dirname(path), place, "") for place in (RECENT, BEST))
    if state is None or not state.model_checkpoint_path.startswith(own):
        found = f"names {state.model_checkpoint_path}" if state else "is no checkpoint file of TensorFlow"
        raise UserError(
            f"{path} {found}, so another program trains in this directory: name another --model_dir, or move the file"
        )
