"""What a user is told where a graph cannot take a checkpoint's variables."""

import contextlib

import tensorflow as tf

from ctr_trainer.messages.errors import UserError

_NAMED = 3


@contextlib.contextmanager
def refusing_other_variables(checkpoint, variables):
    """Within the block a graph's variables are restored from a `Checkpoint`; None for no checkpoint.

    TensorFlow itself refuses a variable that is missing by a long error, and takes one of another shape as it is.

    Raises:
      UserError: the checkpoint lacks some of the variables, or has them in other shapes; names them.
    """
    if checkpoint is None:
        yield
        return
    shapes = tf.train.load_checkpoint(checkpoint.dense_prefix).get_variable_to_shape_map()
    own = {v.op.name: v.shape.as_list() for v in variables if v.shape.is_fully_defined()}
    reshaped = [
        f"{name} {shape} (there {shapes[name]})" for name, shape in own.items() if shapes.get(name, shape) != shape
    ]
    missing = [f"{name} {shape} (not there)" for name, shape in own.items() if name not in shapes]
    if reshaped:
        raise _refusal(checkpoint, reshaped + missing)
    try:
        yield
    except tf.errors.NotFoundError:
        if not missing:
            raise
        raise _refusal(checkpoint, missing) from None


def _refusal(checkpoint, differing):
    more = f" and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
    return UserError(
        f"{checkpoint.path} is of another model: this one has the variables {', '.join(differing[:_NAMED])}{more}. "
        "Give the settings that it was trained with, or name another --model_dir"
    )
