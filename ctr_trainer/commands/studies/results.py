"""Writes the results of a search: a flagfile of the best trial, and a table of all trials."""

import csv
import dataclasses
import io
import os
import pathlib
from typing import Any

import optuna

from ctr_trainer.commands.reports.comparison import format_table
from ctr_trainer.commands.studies.plan import TrialPlans, found_flags
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.files.outputs import refuse_foreign_file
from ctr_trainer.system.messages.errors import UserError

FLAGS, TABLE = "best.flags", "trials.csv"
_BEGINNINGS = {FLAGS: b"# Trial ", TABLE: b"trial,state,"}  # Of the files that `write` has written.
# Names of the attributes of a trial in the storage.
OWN, TEXTS, FAILURE, STOPPED = "own", "texts", "failure", "stopped"
METRICS, EVALUATIONS, ROWS = "metrics", "evaluations", "rows"
_SHOWN = 10
_State = optuna.trial.TrialState


@dataclasses.dataclass(frozen=True)
class Found:
    """The result of a search: the best trial, its value of `metric`, and its settings in `flagfile`.

    `own_value` is the value with the user's settings; None if they were not evaluated. `trials`, `stopped` and `failed`
    count those that have ended, were stopped early, and failed; `rows` are the training examples of all.
    """

    metric: str
    value: float
    own_value: float | None
    best_trial: int
    trials: int
    stopped: int
    failed: int
    rows: int
    flagfile: str


def best_of(study: optuna.Study) -> Any:
    """Returns the best completed trial, or None."""
    complete = [each for each in ranked(study) if each.state == _State.COMPLETE]
    return complete[0] if complete else None


def value_of(trial: Any) -> float | None:
    """Returns the value of a trial; for a stopped trial its best value so far; None without evaluations."""
    if trial.value is not None or not trial.intermediate_values:
        return trial.value
    return trial.intermediate_values[max(trial.intermediate_values)]


def state(trial: Any) -> str:
    """Returns the state of a trial: `complete`, `stopped`, `failed`, or Optuna's name of another state."""
    if trial.state == _State.PRUNED or (trial.state == _State.COMPLETE and trial.user_attrs.get(STOPPED)):
        return "stopped"
    return {_State.COMPLETE: "complete", _State.FAIL: "failed"}.get(trial.state, trial.state.name.lower())


def failure(trial: Any) -> str:
    """Returns the error of a failed trial; "" for other trials."""
    return trial.user_attrs.get(
        FAILURE, "" if trial.state != _State.FAIL else "its process ended without an error message"
    )


def line(study: optuna.Study, trial: Any, metric: str) -> str:
    """Returns the log line of a trial that has ended."""
    settings = "your settings" if trial.user_attrs.get(OWN) else _settings(trial)
    if trial.state == _State.FAIL:
        return f"trial {trial.number} failed: {failure(trial)}; {settings}"
    value, found = value_of(trial), best_of(study)
    text = "no evaluation" if value is None else f"{metric} = {value:.6g}"
    rank = "" if found is None else ", the best so far"
    if found is not None and found.number != trial.number:
        rank = f", best so far {found.value:.6g} in trial {found.number}"
    spent = f"{trial.user_attrs.get(EVALUATIONS, 0)} evaluations, {trial.duration.total_seconds():.0f} s"
    return f"trial {trial.number} {state(trial)}: {text}{rank}; {spent}; {settings}"


def _settings(trial: Any) -> str:
    return ", ".join(f"{name}={value}" for name, value in (trial.user_attrs.get(TEXTS) or {}).items())


def ranked(study: optuna.Study) -> list[Any]:
    """Returns the trials that have ended, the best one first."""
    sign = 1 if study.direction == optuna.study.StudyDirection.MAXIMIZE else -1
    trials = [each for each in study.get_trials(deepcopy=False) if each.state.is_finished()]

    def order(trial: Any) -> tuple[bool, bool, float, int]:
        value = value_of(trial)
        return trial.state != _State.COMPLETE, value is None, -sign * (value or 0.0), trial.number

    return sorted(trials, key=order)


def refuse_others(output: str | os.PathLike[str]) -> None:
    """Raises UserError if `output` is a file, or has a file that `write` would replace and that it did not write."""
    if LocalPath(output).is_file():
        raise UserError(f"output={output}: is a file; name a directory")
    for name in _BEGINNINGS:
        refuse_foreign_file(LocalPath(output, name), _is_ours, "search")


def _is_ours(path: LocalPath) -> bool:
    return path.read_bytes().startswith(_BEGINNINGS[path.name])


def write(study: optuna.Study, plans: TrialPlans, output: pathlib.Path) -> Found:
    """Writes the result files and returns the result. Raises UserError if no trial was evaluated."""
    found = best_of(study)
    if found is None:
        failures = [failure(each) for each in study.get_trials(deepcopy=False) if each.state == _State.FAIL]
        raise UserError(
            "no trial was evaluated within the budget: increase minutes or rows, or decrease eval_steps"
            + (f". The last trial that failed: {failures[-1]}" if failures else "")
        )
    plan, metric = plans.of(found.user_attrs.get(TEXTS)), plans.metric
    trials = ranked(study)
    refuse_others(output)
    title = f"# Trial {found.number} of `search`: {metric} {found.value:.6g} on the validation data."
    flagfile = LocalPath(output, FLAGS)
    flagfile.write_text("\n".join([title, *found_flags(plan)]) + "\n")
    own = next((each for each in trials if each.user_attrs.get(OWN) and each.value is not None), None)
    states = [state(each) for each in trials]
    result = Found(
        metric=metric,
        value=found.value,
        own_value=own and own.value,
        best_trial=found.number,
        trials=len(trials),
        stopped=states.count("stopped"),
        failed=states.count("failed"),
        rows=sum(each.user_attrs.get(ROWS, 0) for each in trials),
        flagfile=str(flagfile),
    )
    rows = [_row(trial, plans) for trial in trials]
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    LocalPath(output, TABLE).write_text(file.getvalue())
    return result


def table(study: optuna.Study, plans: TrialPlans) -> list[str]:
    """Returns a table of the best trials as lines."""
    rows = [_row(trial, plans) for trial in ranked(study)[:_SHOWN]]
    shown = [name for name in rows[0] if name not in ("rows", "failure") and any(row[name] for row in rows)]
    return format_table(shown, [[row[name] for name in shown] for row in rows])


def _row(trial: Any, plans: TrialPlans) -> dict[str, str]:
    """Returns the table row of a trial. In the first trial the cells of the parameters are empty."""
    names, metric = [each.flag for each in plans.space.parameters], plans.metric
    attributes, value = trial.user_attrs, value_of(trial)
    metrics = {name: f"{figure:.6g}" for name, figure in attributes.get(METRICS, {}).items() if name != metric}
    return {
        "trial": str(trial.number),
        "state": state(trial),
        metric: "" if value is None else f"{value:.6g}",
        **{name: metrics.get(name, "") for name in ("auc", "logloss", "copc") if name != metric},
        "evaluations": str(attributes.get(EVALUATIONS, "")),
        "rows": str(attributes.get(ROWS, "")),
        "seconds": f"{trial.duration.total_seconds():.1f}",
        **{name: (attributes.get(TEXTS) or {}).get(name, "") for name in names},
        "failure": failure(trial),
    }
