"""Compares finished and running trainings: a table, the AUC by trained examples, and the settings that differ."""

from ctr_trainer.system.messages.errors import UserError

GROUPS = ()
POSITIONAL = "RUN_DIR..."
EXAMPLES = (
    "python -m ctr_trainer report models/lr models/deepfm",
    "python -m ctr_trainer report models/*",
)


def run(directories: list[str]) -> None:
    """Prints the tables."""
    from ctr_trainer.commands.reports.comparison import format_comparison
    from ctr_trainer.commands.reports.training_run import read_runs

    if not directories:
        raise UserError("report needs the --model_dir of one run or more: python -m ctr_trainer report RUN_DIR...")
    print(format_comparison(read_runs(directories)), flush=True)
