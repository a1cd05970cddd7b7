"""The command line: finds the command, reads its flags and calls it."""

import importlib
import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags as absl_flags

from ctr_trainer import __version__
from ctr_trainer.commands.experiment import flags
from ctr_trainer.ranks import notices
from ctr_trainer.ranks.endings.report import EndReport
from ctr_trainer.settings.by_flag import refusing_by_flags, replaced
from ctr_trainer.system.messages import errors, log_lines
from ctr_trainer.system.messages.errors import UserError, did_you_mean, masked

COMMANDS = {
    "train": "train a model, alone or as one worker under horovodrun",
    "launch": "train under horovodrun, and resume automatically after a loss",
    "evaluate": "compute a trained model's metrics on a data set",
    "importance": "measure which columns a trained model's predictions depend on",
    "predict": "write a trained model's predictions for a data set",
    "search": "search for better settings on converted data",
    "report": "compare training runs: a table and curves",
    "export": "write a trained model as a SavedModel",
    "publish": "give a checkpoint's rows and dense tower to servers, or deliver what a training publishes",
    "keys": "show the keys and rows of single values, such as a user's",
    "erase": "remove single values, such as a user's, from a model and its publications",
    "convert": "turn raw logs into the Parquet files that the other commands read",
    "serve": "run one shard of the embedding lookup service",
    "service": "inspect running shards of the embedding service",
    "score": "serve a published model's predictions",
}
# The commands that may run under horovodrun.
_WORKERS = ("train", "evaluate", "importance", "predict", "export")
# The commands that end in order on SIGTERM; the others end their own jobs or services.
_ENDING_IN_ORDER = (*_WORKERS, "convert")
_HELP = ("-h", "-help", "--help", "-helpfull", "--helpfull")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status: 0, or a status from `messages.errors`."""
    if sys.stdout is sys.__stdout__ and "write" not in vars(sys.stdout):
        _write_until_closed(sys.stdout)
    with log_lines.restored():
        log_lines.install()
        return _run(list(sys.argv[1:] if argv is None else argv))


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if arguments == ["--version"]:
        print(__version__)
        return 0
    name, arguments = arguments[0], arguments[1:]
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS)
        print(f"error: no command {name!r}; there are {', '.join(COMMANDS)}{hint}", file=sys.stderr)
        return errors.USAGE
    command = importlib.import_module(f"ctr_trainer.commands.{name}")
    if any(argument in _HELP for argument in arguments):
        return _print_help(name, command, arguments)
    if hasattr(command, "spelled"):
        arguments = command.spelled(arguments)
    try:
        values, taken = _parse(name, command, arguments)
    except (absl_flags.Error, UserError) as error:
        print(f"error: {masked(str(error))}\nsee python -m ctr_trainer {name} --help", file=sys.stderr)
        return errors.USAGE
    if "log_format" in values:
        rank = notices.Placement.of_this_process().rank if name in _WORKERS else None
        log_lines.install(values["log_format"], rank, warnings_only=bool(rank) and values.get("log_ranks") == "0")
    ending = EndReport(values.get("model_dir", ""))
    run = refusing_by_flags()(command.run)
    return ending.run(lambda: run(*taken), takes_signals=name in _ENDING_IN_ORDER)


def _write_until_closed(stream: Any) -> None:
    """Drops what is written after the reader has closed the pipe, as `head` does."""

    def quiet(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            try:
                return method(*given)
            except BrokenPipeError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

        return call

    stream.write, stream.flush = quiet(stream.write), quiet(stream.flush)


def _parse(name: str, command: types.ModuleType, arguments: list[str]) -> tuple[dict[str, Any], list[Any]]:
    """Returns the values by flag, and the arguments of `command.run`: action, positional ones, given flags, GROUPS."""
    leading: list[Any] = []
    if hasattr(command, "ACTIONS"):
        if not arguments or arguments[0] not in command.ACTIONS:
            hint = did_you_mean(arguments[0], command.ACTIONS) if arguments else ""
            raise UserError(f"{name} needs one of {', '.join(command.ACTIONS)} as its first argument{hint}")
        leading, arguments = arguments[:1], arguments[1:]
    has_experiment = flags.Experiment in command.GROUPS
    values = flags.define((*command.GROUPS, *flags.EXPERIMENT) if has_experiment else command.GROUPS)
    # A flagfile may have every flag of an experiment. On the command line itself, a flag that the command does not use
    # is an error; but the commands with TAKES, which use a model that `train` has trained, ignore its other flags.
    takes = getattr(command, "TAKES", None)
    accepted = {*takes, *flags.define(flags.TRAINING)} if takes else set(flags.define(command.GROUPS))
    for argument in arguments:
        flag = argument.lstrip("-").partition("=")[0]
        flag = flag if flag in values else flag.removeprefix("no")
        if argument.startswith("-") and flag in values and flag not in accepted:
            raise UserError(f"{name} does not use --{flag}")
    rest = values([name, *arguments])[1:]
    if hasattr(command, "POSITIONAL"):
        leading.append(rest)
    elif rest:
        raise UserError(f"{name} takes flags only, not {' '.join(rest)}")
    parsed = flags.parsed(command.GROUPS, values)
    if has_experiment:
        leading.append(flags.given(values, parsed))
    return parsed, [*leading, *(replaced(group(), parsed) for group in command.GROUPS)]


def _overview() -> str:
    lines = ["usage: python -m ctr_trainer COMMAND [--flags]", ""]
    lines += [f"  {name:<12}{summary}" for name, summary in COMMANDS.items()]
    last = "python -m ctr_trainer COMMAND --help shows a command's flags, with examples; --helpfull shows all of them."
    return "\n".join([*lines, "", last])


def _print_help(name: str, command: types.ModuleType, arguments: list[str]) -> int:
    """Prints a command's description, examples, flags and models, or the params of --model=NAME; returns the status."""
    is_full = any("helpfull" in argument for argument in arguments)
    shown = flags.shown(command, is_full)
    positional = f"{command.POSITIONAL} " if hasattr(command, "POSITIONAL") else ""
    about = (command.__doc__ or "").strip()
    lines = [f"usage: python -m ctr_trainer {name} {positional}[--flags]", "", about, "", "Examples:"]
    lines += [f"  {example}" for example in command.EXAMPLES]
    if hasattr(command, "ACTIONS"):
        lines += ["", "Actions:", *(f"  {action:<26}{text}" for action, text in command.ACTIONS.items())]
    recipe = "data" if name == "train" else "none"  # Other commands use no recipe for settings of their own.
    for title, group in shown.items():
        lines += ["", f"{title}:"]
        texts = [(each.name, flags.help_text(each), flags.default_text(each, recipe)) for each in group]
        lines += [f"  --{flag:<31}{text}; default {default}" for flag, text, default in texts]
    lines += ["", "  --flagfile=FILE                more flags, one a line, from a file"]
    if hasattr(command, "TAKES"):
        lines += ["", "A flagfile of `train` may be given; what only training uses is ignored."]
    if hasattr(command, "MAIN") and not is_full:
        lines += ["", f"These are the flags that matter most: python -m ctr_trainer {name} --helpfull shows all."]
    if any(flag.name == "model_params" for group in shown.values() for flag in group):
        from ctr_trainer.models.param_texts import describe_models, describe_params

        named = [argument.partition("=")[2] for argument in arguments if argument.lstrip("-").startswith("model=")]
        try:
            lines += ["", *(describe_params(named[-1]) if named else describe_models())]
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return errors.USAGE
    print("\n".join(lines))
    return 0
