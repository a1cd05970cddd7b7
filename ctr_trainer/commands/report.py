"""Compares finished and running trainings: a table, the settings that differ, and curves as PNG files."""

import dataclasses

from ctr_trainer.settings.setting import Settings, setting
from ctr_trainer.system.messages.errors import UserError


@dataclasses.dataclass(frozen=True)
class ReportFlags(Settings, title="Report"):
    output: str = setting("report", "directory for the curves (PNG); none are written if empty", "path")


GROUPS = (ReportFlags,)
POSITIONAL = "RUN_DIR..."
EXAMPLES = (
    "python -m ctr_trainer report models/lr models/deepfm",
    "python -m ctr_trainer report models/* --output=comparison",
)


def run(directories: list[str], flags: ReportFlags) -> None:
    """Prints the table, and writes the curves to --output if it is given."""
    from ctr_trainer.report.comparison import format_comparison, write_curves
    from ctr_trainer.report.training_run import read_runs

    if not directories:
        raise UserError("report needs the --model_dir of one run or more: python -m ctr_trainer report RUN_DIR...")
    runs = read_runs(directories)
    print(format_comparison(runs), flush=True)
    if flags.output:
        for path in write_curves(runs, flags.output):
            print(path, flush=True)
