"""The share of the negative examples that a model is trained on; checkpoints keep it, to calibrate predictions."""

import dataclasses

import tensorflow as tf

from ctr_trainer.messages.errors import UserError

tf1 = tf.compat.v1
_KEY = ("ctr_trainer", "negative share")  # No string, so that TensorFlow does not try to serialize what is under it.


def record(share):
    """Keeps the share, above 0 and up to 1, that the current graph trains on."""
    tf1.get_default_graph().clear_collection(_KEY)
    tf1.add_to_collection(_KEY, share)


def current():
    """-> the share that the current graph trains on; None if none was recorded."""
    shares = tf1.get_collection(_KEY)
    return shares[0] if shares else None


def as_trained(params, checkpoint):
    """Puts the share that a checkpoint was trained with into the params of its model.

    Args:
      params: `ModelParams`, whose `negative_sampling` is None if the user named no share. Params of another class,
        without that field, are returned as they are.
      checkpoint: `Checkpoint`; if it knows of no share, the params are returned as they are.

    Returns:
      the params.

    Raises:
      UserError: the params name another share than the checkpoint's.
    """
    if checkpoint.negative_sampling is None or not hasattr(params, "negative_sampling"):
        return params
    if params.negative_sampling not in (None, checkpoint.negative_sampling):
        raise UserError(
            f"--negative_sampling={params.negative_sampling:g}: {checkpoint.path} was trained with "
            f"--negative_sampling={checkpoint.negative_sampling:g}, and its predictions are calibrated for that; leave "
            "the flag out"
        )
    return dataclasses.replace(params, negative_sampling=checkpoint.negative_sampling)


def with_current(params):
    """-> the params of a model with the share that the current graph trains on, as `as_trained` of its checkpoints."""
    share = current()
    if share is None or not hasattr(params, "negative_sampling"):
        return params
    return dataclasses.replace(params, negative_sampling=share)
