"""The error of a training whose numbers are no longer finite."""

from ctr_trainer.messages.errors import UserError


def diverged(what):
    """Makes the error that the training diverged, with advice on how to go on.

    Args:
      what: a clause that names the number that is not finite, as `the loss of step 7 is nan`.

    Returns:
      UserError.
    """
    return UserError(
        f"{what}: the training diverged. Go on with a lower --learning_rate and --embedding_learning_rate, or with "
        "--clip_norm; --resume_from=STEP goes back to a checkpoint before the last one"
    )
