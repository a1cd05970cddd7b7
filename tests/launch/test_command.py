"""The command line of `launch`."""

import pytest

from ctr_trainer import cli
from ctr_trainer.commands import launch

TRAIN = ["--train_data=d", "--model_dir=m"]


@pytest.fixture
def supervised(monkeypatch):
    """The list of arguments of each `launch`: (arguments of `train`, `LaunchFlags`)."""
    found = []
    monkeypatch.setattr(launch, "run", lambda *given: found.append(given))
    return found


def test_options_are_spelled_as_horovodrun_has_them_also_in_the_help(supervised, capsys):
    options = "-np 3 --min-np 1 --max-np=8 -H a:4,b:4 --network-interface eth0 --start-timeout 9".split()
    assert cli.main(["launch", *options, "--", "--min-np", *TRAIN]) == 0
    ((arguments, flags),) = supervised
    assert arguments == ["--min-np", *TRAIN]
    assert (flags.np, flags.fewest, flags.most, flags.hosts) == (3, 1, 8, "a:4,b:4")
    assert (flags.network_interface, flags.start_timeout) == ("eth0", 9)
    assert cli.main(["launch", "--num-proc=2", "--min_np=1", "--", *TRAIN]) == 0
    assert (supervised[1][1].np, supervised[1][1].fewest, supervised[1][1].most) == (2, 1, 2)
    assert cli.main(["launch", "--help"]) == 0
    text = capsys.readouterr().out
    assert "python -m ctr_trainer launch -np 8 --min-np 4 -H a:4,b:4" in text and "--max_restarts" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-np", "2", "--min-np=3", "--", *TRAIN], "--min-np=3, -np 2, --max-np=2: expected these in ascending order"),
        (["-np", "2"], "the flags of `train` after -- are missing"),
        (["--", *TRAIN, "--no_such_flag=1"], "Unknown command line flag 'no_such_flag'"),
        (["--", *TRAIN, "--batch_size=0"], "--batch_size=0 must be at least 1"),
        (["--", *TRAIN, "more"], "expected flags, not more; see python -m ctr_trainer train --help"),
        (["--", "--train_data=d"], "--model_dir"),
        (["--", *TRAIN, "--epochs=0"], "--epochs=0 never ends by itself"),
        (["-np", "2", "-H", "a", "--", *TRAIN], "-H a: 'a' is not a host"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(arguments, said, capsys):
    assert cli.main(["launch", *arguments]) in (1, 2)
    assert said in capsys.readouterr().err
