"""Compares training runs, ended or under way: a table, the settings that differ, and curves as PNG files."""

from ctr_trainer.flags.report import ReportFlags
from ctr_trainer.messages.errors import UserError

GROUPS = (ReportFlags,)
POSITIONAL = "RUN_DIR..."
EXAMPLES = (
    "python -m ctr_trainer report models/lr models/deepfm",
    "python -m ctr_trainer report models/* --output=comparison",
)


def run(directories, flags):
    """Prints the table; writes the curves to --output, where that is given."""
    from ctr_trainer.report.comparison import format_comparison
    from ctr_trainer.report.training_run import read_runs

    if not directories:
        raise UserError("report needs the --model_dir of one run or more: python -m ctr_trainer report RUN_DIR...")
    runs = read_runs(directories)
    print(format_comparison(runs), flush=True)
    if flags.output:
        from ctr_trainer.report.training_curves import write_curves

        for path in write_curves(runs, flags.output):
            print(path, flush=True)
