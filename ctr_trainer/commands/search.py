"""Searches for better settings: trials train on the same converted data, and are compared on --eval_data.

The first trial trains the given settings. The others vary the flags of --space, a TOML file, or of the default space.
Trials are compared by --best_metric; if it is not given, by log loss, or by loss for data of several labels. Bad trials
are stopped early. Test data is never read. The results in --output are best.flags for `train --flagfile` and
trials.csv.

The same command continues the search. Several hosts search together if they share one --storage.
"""

import dataclasses
import json
import signal
import typing

from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.models.registry import MODELS, require_known
from ctr_trainer.ranks.meetings import Terminated
from ctr_trainer.settings.by_flag import require
from ctr_trainer.settings.setting import Settings, setting
from ctr_trainer.settings.training_configs import EvaluationConfig
from ctr_trainer.system.files.paths import is_url
from ctr_trainer.system.messages.errors import StoppedInOrder, UserError
from ctr_trainer.system.processes.child import END_SIGNALS, handling_signals


@dataclasses.dataclass(frozen=True)
class SearchFlags(Settings, title="Search"):
    output: str = setting("search", "directory for best.flags, trials.csv and the files of the trials", "path")
    minutes: float = setting(
        60.0, "duration of the search; 0 for no limit, until --budget_rows", "minutes", minimum=0.0
    )
    budget_rows: int = setting(
        0,
        "training examples of all trials together, over all restarts and hosts; 0 for no limit, until --minutes",
        "examples",
        minimum=0,
    )
    storage: str = setting(
        "",
        "database of the trials, which several hosts may share: a URL such as postgresql://host/name, or an SQLite "
        "file; OUTPUT/search.db if not given",
        "path",
    )
    space: str = setting(
        "", "TOML file of the flags to vary, with ranges or choices; a default space if not given", "path"
    )


GROUPS = (SearchFlags, Experiment, EvaluationConfig)
MAIN = (
    *("output", "minutes", "budget_rows", "storage", "space"),
    *("train_data", "eval_data", "model", "model_params", "recipe", "best_metric", "eval_steps", "eval_epochs"),
    *("early_stopping_patience", "seed", "threads", "log_format"),
)
EXAMPLES = (
    "python -m ctr_trainer search --flagfile=my.flags --minutes=60",
    "python -m ctr_trainer search --flagfile=my.flags --space=space.toml --budget_rows=50000000 --output=search_2",
    "python -m ctr_trainer search --flagfile=my.flags --storage=postgresql://db/searches    # on each host",
    "python -m ctr_trainer train --flagfile=search/best.flags --model_dir=models/best",
)

if typing.TYPE_CHECKING:
    from ctr_trainer.commands.studies.plan import TrialPlans


def run(
    given: frozenset[str],
    flags: SearchFlags,
    experiment: Experiment,
    evaluation: EvaluationConfig,
) -> None:
    """Searches, prints the best trials, and prints the result as a JSON object on the last line."""
    from ctr_trainer.commands.experiment.recipes import Facts
    from ctr_trainer.commands.studies import space
    from ctr_trainer.commands.studies.plan import TrialPlan, TrialPlans
    from ctr_trainer.data.dataset import open_dataset
    from ctr_trainer.data.input_schemes import is_stream

    data = experiment.data
    require(data, "train_data", "eval_data")
    require_known(experiment.model.model)
    if is_url(flags.output):
        raise UserError(f"--output={flags.output}: search writes to a directory of a disk; name its path")
    if not flags.minutes and not flags.budget_rows:
        raise UserError("--minutes=0 sets no time limit, so the search would never end: give --budget_rows")
    described: list[str] = []
    for name, path in (("train_data", data.train_data), ("eval_data", data.eval_data)):
        if is_stream(path):
            raise UserError(f"--{name}={path}: each trial reads the same data, and a stream is read once; give files")
        info = open_dataset(path)  # Data that is not converted raises an error: each trial would convert it again.
        described.append(json.dumps([info.spec.to_dict(), info.rows, info.distinct, info.label_means], sort_keys=True))
    own, found = TrialPlan.of(given, experiment, evaluation), space.load(flags.space)
    info = open_dataset(data.train_data)
    if info.spec.pretrained and not flags.space:  # The vectors of a file have one length.
        parameters = tuple(each for each in found.parameters if each.flag != "embedding_dim")
        found = dataclasses.replace(found, parameters=parameters)
    widened = tuple(each.widened(own.texts[each.flag]) if each.flag in own.texts else each for each in found.parameters)
    has_pieces = any(feature.pieces for feature in info.spec.dense)
    facts = Facts(
        info.rows,
        keys=sum(info.distinct.values()),
        has_validation=True,
        has_logloss=experiment.model.model in MODELS and len(info.spec.labels) == 1,
        has_pieces=has_pieces,
    )
    plans = TrialPlans(own, dataclasses.replace(found, parameters=widened), facts, tuple(described))
    plans.of(None)  # Refuses settings that cannot be trained.
    plans.of({each.flag: str(each.start) for each in found.parameters if each.start is not None})
    _search(plans, flags)


def _interrupt(number: int, _: object) -> None:
    """Ends the search in order; a second signal ends the process immediately."""
    for each in END_SIGNALS:
        signal.signal(each, signal.SIG_DFL)
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _search(plans: "TrialPlans", flags: SearchFlags) -> None:
    try:
        from ctr_trainer.commands.studies import results
        from ctr_trainer.commands.studies.study import Search
    except ModuleNotFoundError as missing:
        if missing.name != "optuna":
            raise
        raise UserError("search needs the package optuna: pip install 'ctr_trainer[search]'") from missing
    results.refuse_others(flags.output)
    search = Search(plans, flags.output, flags.storage, minutes=flags.minutes, rows=flags.budget_rows)
    try:
        with handling_signals(_interrupt):
            found = search.run()
    except KeyboardInterrupt as error:
        try:
            so_far = search.write()
            text = f"interrupted: the best {so_far.metric} so far is {so_far.value:.6g}, see {so_far.flagfile}"
        except UserError:
            text = "interrupted: no trial was evaluated yet"
        number = signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT
        raise StoppedInOrder(f"{text}. The same command continues the search", number) from None
    print("\n".join(search.table()), flush=True)
    print(json.dumps(dataclasses.asdict(found)), flush=True)
