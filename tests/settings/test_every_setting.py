"""Every setting of every `Settings` class: its flag arrives, and a wrong value is refused from both sides."""

import dataclasses
import re
import typing

import numpy as np
import pytest

from ctr_trainer.commands import convert, evaluate, importance, launch, report, serve, service
from ctr_trainer.commands.experiment import flags
from ctr_trainer.settings.by_flag import by_flag, read_text, replaced, text_of
from ctr_trainer.settings.setting import SettingError, Settings, declared, flag_of
from ctr_trainer.settings.train_settings import Schedule
from ctr_trainer.settings.training_configs import PublishConfig
from ctr_trainer.system.messages.errors import UserError

GROUPS = [
    *flags.EXPERIMENT,
    *convert.GROUPS,
    *evaluate.GROUPS,
    *importance.GROUPS,
    *launch.GROUPS,
    *report.GROUPS,
    *serve.GROUPS,
    *service.GROUPS,
]
NEEDED = {
    "lr_schedule_params=unit": ["--lr_schedule_params=warmup_steps=1"],
    "min_np": ["--np=2"],
    "table_dir": ["--table_memory=4GiB"],
}  # By flag, what it is not accepted without.


def _kinds(kind):
    return typing.get_args(kind) or (kind,)


def _other(kind, setting, default):
    """Returns a valid value of the setting that is not its default."""
    if setting.example:
        return setting.example if setting.example != default else setting.example[:1]
    number = next((each for each in _kinds(kind) if each in (int, float)), None)
    if setting.choices and number is None:
        return next(choice for choice in setting.choices if choice != default)
    if bool in _kinds(kind):
        return not default
    if number is None:
        other = {"time": "2026-11-23T10:00:00Z", "size": "4GiB"}.get(setting.unit, "other")
        return ("a", "b") if typing.get_origin(kind) is tuple else other
    low = max(each for each in (setting.minimum, setting.above, 0) if each is not None)
    high = min((each for each in (setting.maximum, setting.below) if each is not None), default=None)
    value = number((low + high) / 2 if high is not None else low + 2)
    if value == default:
        value = number((low + 3 * high) / 4 if high is not None else low + 3)
    return (value,) if typing.get_origin(kind) is tuple else value


def _as_text(value, separator=","):
    if isinstance(value, tuple):
        return separator.join(map(_as_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _given(owner, field, value):
    """Returns the argument that sets a field."""
    flag = flag_of(owner, field)
    return f"--{flag}={_as_text(value, ':' if '=' in flag else ',')}"


def _leaves(settings, path=(), before=()):
    """Yields (path of attributes to the settings, field, flags that have them read) of `Settings` and those in them."""
    for field in dataclasses.fields(settings):
        found, value = declared(field), getattr(settings, field.name)
        if found is None:
            if isinstance(field.type, type) and issubclass(field.type, Settings):
                yield from _leaves(value, (*path, field.name), before)
        elif found.kinds is None:
            yield path, type(settings), field, before
        else:
            for name, kind in found.kinds.items():
                yield from _leaves(kind(), (*path, field.name), (f"--{flag_of(type(settings), field)}={name}",))


def _context(owner, field):
    """Returns the flags with which another value of the field is valid."""
    of = declared(field).of
    if not of:
        return NEEDED.get(flag_of(owner, field), [])
    others = [each for each in dataclasses.fields(Schedule) if of[0] in declared(each).of]
    own = [_given(Schedule, each, _other(each.type, declared(each), each.default)) for each in others]
    return [f"--lr_schedule={of[0]}", *own]


CASES = [
    pytest.param(group, path, owner, field, before, id=f"{group.__name__}-{owner.__name__}-{field.name}")
    for group in dict.fromkeys(GROUPS)
    for path, owner, field, before in _leaves(group())
]


def _read(group, *arguments):
    return flags.parse([group], arguments)[0]


@pytest.mark.parametrize(
    ("group", "path", "owner", "field", "before"), [case for case in CASES if flag_of(*case.values[2:4])]
)
def test_a_setting_given_by_its_flag_arrives(group, path, owner, field, before):
    value = _other(field.type, declared(field), field.default)
    found = _read(group, *before, *_context(owner, field), _given(owner, field, value))
    holder = found
    for name in path:
        holder = getattr(holder, name)
    assert getattr(holder, field.name) == value
    assert by_flag(found)[flag_of(owner, field)] == value
    assert replaced(group(), by_flag(found)) == found


def _wrong(kind, setting):
    """Returns invalid values of a setting."""
    number = next((each for each in _kinds(kind) if each in (int, float)), None)
    if setting.choices:
        return ["no such choice"]
    if number is None:
        paths = ["~/x", "a,~me/b"] if setting.unit in ("path", "URL") else []
        return paths if bool not in _kinds(kind) else ["maybe"]
    ends = [(setting.minimum, -1), (setting.maximum, 1), (setting.above, 0), (setting.below, 0)]
    wrong = [number(end + step) for end, step in ends if end is not None]
    return [(each,) if typing.get_origin(kind) is tuple else each for each in wrong] + ["a text"]


@pytest.mark.parametrize(("group", "path", "owner", "field", "before"), CASES)
def test_a_wrong_value_is_refused_from_python_and_from_the_command_line(group, path, owner, field, before):
    for value in _wrong(field.type, declared(field)):
        with pytest.raises(SettingError, match=re.escape(f"{field.name}={_as_text(value)}")) as error:
            owner(**{field.name: value})
        assert "--" not in str(error.value).partition(":")[0]
        if flag := flag_of(owner, field):
            with pytest.raises(UserError, match=flag):
                _read(group, *before, *_context(owner, field), _given(owner, field, value))


@pytest.mark.parametrize("value", [0.001, 2.0, 1e-30, 3, True, "adam", (1.5, 2.0)])
def test_a_value_of_numpy_has_the_text_of_the_same_value(value):
    kind = tuple[float, ...] if isinstance(value, tuple) else type(value)
    of_numpy = tuple(map(np.float64, value)) if isinstance(value, tuple) else np.asarray(value)[()]
    for each in (value, of_numpy):
        assert read_text("a=b", kind, text_of("a=b", each)) == value
    assert text_of("l2", np.float64(2)) == "2"


def test_settings_of_one_flag_are_declared_once():
    seen = {}
    for case in CASES:
        group, _, owner, field, before = case.values
        if flag_of(owner, field) and not before:
            of = (declared(field).help, field.default)
            assert seen.setdefault((group, flag_of(owner, field)), of) == of


def test_help_texts_begin_with_a_word_that_is_no_preposition():
    for case in CASES:
        assert declared(case.values[3]).help.split()[0].lower() not in (
            "of",
            "to",
            "between",
            "by",
            "over",
            "up",
            "from",
        )


@pytest.mark.parametrize("url", ["redis://ctr:secret@host:1/x", "rediss://:secret@host:1"])
def test_a_password_in_the_url_of_a_cluster_is_refused_and_not_shown(url):
    with pytest.raises(SettingError, match="write USER:PASSWORD into a file") as refused:
        PublishConfig(to=url)
    assert "secret" not in str(refused.value) + refused.value.by_flags
    assert "--publish=redis" in refused.value.by_flags
