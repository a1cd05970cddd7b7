"""One job at a time trains in a model directory."""

import contextlib

from ctr_trainer.files.held_directory import held
from ctr_trainer.ranks import distributed


@contextlib.contextmanager
def one_job(model_dir):
    """Rank 0 holds the directory within the block; evaluations, predictions and exports do not ask for it.

    Yields:
      of rank 0 the lock, whose `check` raises UserError if it was lost; of others None.

    Raises:
      UserError: another job trains there; names its process, its host and since when.
    """

    def refusal(holder):
        return (
            f"another job ({holder}) trains the model in {model_dir}: wait for its end, end it, or name another "
            "--model_dir"
        )

    with contextlib.ExitStack() as stack:
        yield stack.enter_context(held(model_dir, refusal)) if distributed.is_chief() else None
