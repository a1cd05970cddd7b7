"""A search with Optuna, whose storage several hosts can share and a later run can continue."""

import contextlib
import logging
import math
import os
import pathlib
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import optuna
import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from ctr_trainer.commands.reports.training_run import Curve, Run, best
from ctr_trainer.commands.studies import results
from ctr_trainer.commands.studies.plan import TrialPlans, trial_flags
from ctr_trainer.commands.studies.training import TrialTraining
from ctr_trainer.models.metrics.evaluation_metrics import DIRECTIONS
from ctr_trainer.system.files.local_path import refusing_unwritable
from ctr_trainer.system.messages.errors import UserError, masked

DATABASE, TRIALS = "search.db", "trials"
# After 2, 4, 8 ... evaluations, only the better half of the trials with as many evaluations continues. An earlier
# comparison, or one with the first trial, would stop trials that learn slowly and become good.
_FIRST_RUNG, _REDUCTION = 2, 2
_RANDOM_TRIALS = 8
# If a process is killed, its trial fails after the grace period, and is retried once.
_HEARTBEAT_SECONDS, _GRACE_SECONDS, _LOCKED_SECONDS = 30, 90, 60
_FAILURES_AT_THE_START = 3
_KEPT_METRICS = ("auc", "logloss", "copc")

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def _quiet_optuna() -> Iterator[None]:
    """Hides Optuna's log and its warnings about experimental functions within the block."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


class Search:
    """Runs trials until the budget is spent. The first trial trains the user's settings and is never stopped early.

    The objective is the best value of the metric in the evaluations of a trial. Asynchronous successive halving stops
    trials that are not in the better half after the same number of evaluations. Optuna's TPE suggests the parameters.

    The results and the trials' files are in `output`. `storage` is a database URL for SQLAlchemy, or the path of an
    SQLite file; "" for one in `output`. The budget is `minutes` of this process, and training `rows` of all trials of
    the study, over all hosts and runs; 0 for no limit. Raises UserError if the storage cannot be opened, or if it is
    unknown which values of the metric are better.

    Source: Li et al., A System for Massively Parallel Hyperparameter Tuning, MLSys 2020; Bergstra et al., Algorithms
    for Hyper-Parameter Optimization, NeurIPS 2011.
    """

    @_quiet_optuna()
    def __init__(self, plans: TrialPlans, output: str, storage: str, minutes: float, rows: int) -> None:
        self._plans, self._output, self._minutes, self._budget_rows = plans, pathlib.Path(output), minutes, rows
        self._metric = plans.metric
        direction = DIRECTIONS.get(self._metric.split("/")[0])
        if direction is None:
            raise UserError(f"best_metric={self._metric}: search supports {', '.join(DIRECTIONS)}")
        self._direction = direction
        self._study = _open(plans, self._output, storage, direction)
        self._trials = self._output / TRIALS / self._study.study_name.rpartition("-")[2]
        own = {each.flag: each.value(plans.own.texts[each.flag]) for each in self._given_parameters()}
        known = self._study.get_trials(deepcopy=False)
        if not any(_is_own(each) and each.state != optuna.trial.TrialState.FAIL for each in known):
            self._study.enqueue_trial(own, user_attrs={results.OWN: True})
        starts = {each.flag: each.value(each.start) for each in plans.space.parameters if each.start is not None}
        if starts and not known:
            self._study.enqueue_trial(starts)
        self._began, self._failures, self._rows = time.monotonic(), 0, 0
        form = "{desc} |{bar:20}| {n:.0f}% of the budget, {elapsed}"
        self._bar = tqdm.tqdm(total=100, bar_format=form, leave=False, disable=not sys.stderr.isatty())

    @_quiet_optuna()
    def run(self) -> results.Found:
        """Runs trials, updates the result files after each trial, and returns the result.

        Raises UserError if the first three trials failed, or if no trial was evaluated.
        """
        trials = self._study.get_trials(deepcopy=False)
        finished = sum(each.state.is_finished() for each in trials)
        started = f"continues a search of {finished} trials" if finished else "starts"
        _log.info("%s %s, by %s on the validation data", self._study.study_name, started, self._metric)
        with logging_redirect_tqdm(), self._bar:  # The log is written above the bar.
            if self._spent() < 1:
                self._study.optimize(self._objective, catch=(UserError,), callbacks=[self._ended])
        return self.write()

    def write(self) -> results.Found:
        """Writes the result files, and returns the result so far; raises UserError if no trial was evaluated."""
        return results.write(self._study, self._plans, self._output)

    def table(self) -> list[str]:
        """Returns a table of the best trials as lines."""
        return results.table(self._study, self._plans)

    def _given_parameters(self) -> list[Any]:
        texts = self._plans.own.texts
        return [each for each in self._plans.space.parameters if each.flag in texts and each.holds(texts[each.flag])]

    def _objective(self, trial: optuna.Trial) -> float:
        is_own = _is_own(trial)
        parameters = self._given_parameters() if is_own else self._plans.space.parameters
        texts = {each.flag: each.suggest(trial) for each in parameters}
        training = TrialTraining(self._trials, trial.number)
        reported = 0

        def watch(run: Run) -> bool:
            nonlocal reported
            curve = run.curve(self._metric)
            self._rows = run.examples(curve[-1][0]) or 0 if curve else 0
            self._bar.set_description(f"trial {trial.number}", refresh=False)
            self._bar.update(min(100 * self._spent(), 100) - self._bar.n)
            for number in range(reported + 1, 1 if is_own else len(curve) + 1):
                trial.report(self._best(curve[:number]), number)
                reported = number
                if trial.should_prune():
                    return True
            return self._spent() > 1

        try:
            trial.set_user_attr(results.TEXTS, None if is_own else texts)
            plan = self._plans.of(None if is_own else texts)
            whole = training.run(trial_flags(plan, str(training.model_dir)), self._metric, watch)
            run = training.so_far()
            curve = run.curve(self._metric)
            trial.set_user_attr(results.EVALUATIONS, len(curve))
            trial.set_user_attr(results.STOPPED, not whole)
            if found := best(curve, self._direction):
                metrics = next(each for each in run.evaluations if each["step"] == found[0])
                kept = {name: metrics[name] for name in (*_KEPT_METRICS, self._metric) if metrics.get(name) is not None}
                trial.set_user_attr(results.METRICS, {"step": found[0], **kept})
        except KeyboardInterrupt:
            trial.set_user_attr(results.FAILURE, "interrupted; the next run repeats it")
            self._study.enqueue_trial(trial.params, user_attrs={results.OWN: True} if is_own else None)
            training.remove()
            raise
        except UserError as error:
            trial.set_user_attr(results.FAILURE, str(error))
            training.remove()
            raise
        finally:
            trial.set_user_attr(results.ROWS, self._rows)
            self._rows = 0
        return self._value(trial, training, curve, whole, is_own)

    def _value(self, trial: optuna.Trial, training: TrialTraining, curve: Curve, whole: bool, is_own: bool) -> float:
        """Returns the value of a trial, whose model stays if it is the best one; raises TrialPruned if pruned."""
        former = results.best_of(self._study)
        value = self._best(curve) if curve else math.nan
        is_best = former is None or (value > former.value if self._direction == "max" else value < former.value)
        if math.isnan(value) or not (whole or is_own or is_best):  # The budget may have ended, and stopped it.
            training.remove()
            raise optuna.TrialPruned
        if not is_best:
            training.remove()
        elif former is not None:
            TrialTraining(self._trials, former.number).remove()
        return value

    def _best(self, curve: Curve) -> float:
        found = best(curve, self._direction)
        return found[1] if found else math.nan

    def _ended(self, study: optuna.Study, trial: Any) -> None:
        """Logs the result of a trial, writes the result files, and stops the study if the budget is spent."""
        _log.info("%s", results.line(study, trial, self._metric))
        has_failed = trial.state == optuna.trial.TrialState.FAIL
        self._failures = self._failures + 1 if has_failed else -sys.maxsize
        if self._failures >= _FAILURES_AT_THE_START:
            raise UserError(f"the first {self._failures} trials failed; the last one: {results.failure(trial)}")
        if results.best_of(study):
            self.write()
        if self._spent() >= 1:
            study.stop()

    def _spent(self) -> float:
        """Returns the spent share of the budget; at least 1 if it is exhausted."""
        shares = [0.0]
        if self._minutes:
            shares.append((time.monotonic() - self._began) / (60 * self._minutes))
        if self._budget_rows:
            known = self._study.get_trials(deepcopy=False)
            used = self._rows + sum(each.user_attrs.get(results.ROWS, 0) for each in known)
            shares.append(used / self._budget_rows)
        return max(shares)


def _is_own(trial: Any) -> bool:
    return bool(trial.user_attrs.get(results.OWN))


def _open(plans: TrialPlans, output: pathlib.Path, storage: str, direction: str) -> optuna.Study:
    """Returns the study of these plans, which is created if the storage does not have it."""
    with refusing_unwritable(output):
        output.mkdir(parents=True, exist_ok=True)
    url = storage if "://" in storage else f"sqlite:///{os.path.abspath(storage or output / DATABASE)}"
    timeout: Mapping[str, Any] = {"connect_args": {"timeout": _LOCKED_SECONDS}} if url.startswith("sqlite") else {}
    try:
        opened = optuna.storages.RDBStorage(
            url,
            engine_kwargs=dict(timeout),
            heartbeat_interval=_HEARTBEAT_SECONDS,
            grace_period=_GRACE_SECONDS,
            heartbeat_stale_trial_callback=optuna.storages.RetryHeartbeatStaleTrialCallback(max_retry=1),
        )
        study = optuna.create_study(
            study_name=plans.fingerprint(),
            storage=opened,
            direction="maximize" if direction == "max" else "minimize",
            load_if_exists=True,
            pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=_FIRST_RUNG, reduction_factor=_REDUCTION),
        )
    except Exception as error:  # SQLAlchemy, the database's package and Optuna raise different errors.
        lines = str(error).splitlines() or [type(error).__name__]
        raise UserError(f"storage={masked(url)}: cannot be opened: {lines[0]}") from error
    # Hosts that join a study must not repeat the random numbers of the first host.
    seed = None if study.get_trials(deepcopy=False) else plans.own.experiment.run.seed
    study.sampler = optuna.samplers.TPESampler(n_startup_trials=_RANDOM_TRIALS, seed=seed)
    return study
