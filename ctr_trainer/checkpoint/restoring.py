"""The error message for a checkpoint whose variables do not match the graph."""

import contextlib
from collections.abc import Iterable, Iterator

import tensorflow as tf

from ctr_trainer.checkpoint.checkpoint import Checkpoint
from ctr_trainer.system.messages.errors import UserError

_NAMED = 3


@contextlib.contextmanager
def refusing_other_variables(checkpoint: Checkpoint | None, variables: Iterable[tf.Variable]) -> Iterator[None]:
    """Replaces TensorFlow's errors within the block, which restores a graph's variables, with a message for users.

    TensorFlow's own error for a missing variable is long, and TensorFlow accepts a variable with a different shape.

    Raises:
      UserError: the checkpoint lacks variables, or has variables with different shapes; the message names them.
    """
    if checkpoint is None:
        yield
        return
    shapes = tf.train.load_checkpoint(checkpoint.dense_prefix).get_variable_to_shape_map()
    own = {v.op.name: v.shape.as_list() for v in variables if v.shape.is_fully_defined()}
    other = {name: shape for name, shape in own.items() if shapes.get(name) != shape}
    reshaped = [f"{name} {shape} (there {shapes[name]})" for name, shape in other.items() if name in shapes]
    missing = [f"{name} {shape} (not there)" for name, shape in other.items() if name not in shapes]
    first = ", ".join([*reshaped, *missing][:_NAMED])
    more = f" and {len(other) - _NAMED} more" if len(other) > _NAMED else ""
    refusal = UserError(
        f"{checkpoint.path} is of another model: this one has the variables {first}{more}. Give the settings that it "
        "was trained with, or name another model_dir"
    )
    if reshaped:
        raise refusal
    try:
        yield
    except tf.errors.NotFoundError:
        if not missing:
            raise
        raise refusal from None
