"""One job at a time trains in a model directory."""

import contextlib

from ctr_trainer.files.held_directory import held
from ctr_trainer.ranks import distributed


@contextlib.contextmanager
def one_job(model_dir):
    """Rank 0 holds the directory within the block; evaluations, predictions and exports do not ask for it.

    Raises:
      UserError: another job trains there; names its process, its host and since when.
    """

    def refusal(holder):
        return (
            f"another job ({holder}) trains the model in {model_dir}: wait for its end, end it, or name another "
            "--model_dir"
        )

    with contextlib.ExitStack() as stack:
        if distributed.is_chief():
            stack.enter_context(held(model_dir, refusal))
        yield
