"""The trials of a study, with trainings that only pretend: which are stopped, which count, and when the search ends."""

import warnings

import pytest

pytest.importorskip("optuna", reason="search needs optuna: pip install 'ctr_trainer[search]'")

from ctr_trainer.commands.reports.training_run import Run
from ctr_trainer.commands.studies import results, study
from ctr_trainer.commands.studies.space import Parameter, Space
from ctr_trainer.commands.studies.training import TrialTraining
from ctr_trainer.system.messages.errors import UserError
from tests.search.test_space import _plans

EVALUATIONS = 20


class Pretended(TrialTraining):
    """A training whose value rises to its learning rate, and which fails if that is 0.25."""

    started: list[float] = []

    def run(self, flags, metric, watch):
        rate = next((float(f.partition("=")[2]) for f in flags if f.startswith("--learning_rate=")), 0.5)
        self.started.append(rate)
        self.remove()
        self.model_dir.mkdir(parents=True)
        (self.model_dir / "MODEL").touch()
        self._flagfile.write_text("\n".join(flags))
        self._evaluations = []
        if rate == 0.25:
            raise UserError("no memory")
        for number in range(1, EVALUATIONS + 1):
            self._evaluations.append({"step": number, "auc": rate * number / EVALUATIONS})
            if watch(self.so_far()):
                return False
        return True

    def so_far(self):
        return Run("", {}, self._evaluations, {"batch_size": 10}, {})


@pytest.fixture
def searched(tmp_path, monkeypatch):
    """Returns f(rates, rows, given) -> (what was found, the trials): a search over learning rates, in that order."""
    monkeypatch.setattr(study, "TrialTraining", Pretended)

    def run(rates, rows, given=()):
        Pretended.started = []
        plans = _plans(["--best_metric=auc", "--batch_size=10", *given], Space((Parameter("learning_rate", 0.0, 1.0),)))
        search = study.Search(plans, str(tmp_path / "out"), "", minutes=0, rows=rows)
        for rate in rates:
            search._study.enqueue_trial({"learning_rate": rate})
        found = search.run()
        return found, search._study.get_trials()

    return run


def test_optuna_and_warnings_are_afterwards_as_before(searched):
    verbosity, filters = study.optuna.logging.get_verbosity(), warnings.filters[:]
    searched([], rows=10)
    assert study.optuna.logging.get_verbosity() == verbosity != study.optuna.logging.ERROR
    assert warnings.filters == filters


def test_a_trial_in_the_worse_half_is_stopped_but_never_the_first_one(searched):
    found, trials = searched([0.4, 0.3, 0.6], rows=10 * (20 + 20 + 2 + 20))
    states = [results.state(trial) for trial in trials]
    assert states == ["complete", "complete", "stopped", "complete"]
    assert [trial.user_attrs[results.EVALUATIONS] for trial in trials] == [20, 20, 2, 20]
    assert (found.value, found.own_value, found.best_trial, found.stopped) == (0.6, 0.5, 3, 1)


def test_the_first_trial_is_the_given_one_and_is_told_to_the_sampler(searched):
    _, trials = searched([], rows=200, given=["--learning_rate=0.75"])
    assert Pretended.started[0] == 0.75 and trials[0].params == {"learning_rate": 0.75}
    assert trials[0].user_attrs[results.TEXTS] is None


def test_a_failed_trial_is_recorded_and_three_at_the_start_end_the_search(searched, tmp_path):
    found, trials = searched([0.25, 0.7], rows=400)
    assert [results.state(trial) for trial in trials] == ["complete", "failed", "complete"]
    assert results.failure(trials[1]) == "no memory" and found.failed == 1
    assert [path.name for path in _models(tmp_path)] == ["2"]
    with pytest.raises(UserError, match="the first 3 trials failed; the last one: no memory"):
        searched([0.25, 0.25, 0.25], rows=400, given=["--learning_rate=0.25"])


def test_searches_of_other_settings_keep_each_others_models(searched, tmp_path):
    searched([0.9], rows=400)
    kept = _models(tmp_path)
    assert [path.name for path in kept] == ["1"]
    searched([0.1], rows=400, given=["--hidden_units=8"])
    assert len(_models(tmp_path)) == 2 and {*kept} < {*_models(tmp_path)}


def _models(tmp_path):
    return [path.parent for path in (tmp_path / "out" / "trials").rglob("MODEL")]


def test_the_end_of_the_budget_stops_a_trial_which_counts_if_it_is_the_best(searched):
    found, trials = searched([0.9], rows=10 * (20 + 15))
    assert [trial.user_attrs[results.EVALUATIONS] for trial in trials] == [20, 16]
    assert found.value == pytest.approx(0.9 * 16 / 20) and found.rows == 360
    again, trials = searched([0.1], rows=10 * (20 + 15 + 2))  # The same settings: it continues.
    assert len(trials) == 3 and Pretended.started == [0.1]
    assert again.value == found.value and results.state(trials[2]) == "stopped"


def test_a_users_directory_in_the_place_of_a_trial_stays_and_fails_it(tmp_path):
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "notes.txt").write_text("mine")
    training = TrialTraining(tmp_path, 3)
    with pytest.raises(UserError, match=r"was not made by a search.*another output"):
        training.run(["--model=lr"], "auc", lambda run: False)
    training.remove()
    assert (tmp_path / "3" / "notes.txt").read_text() == "mine"
