"""The tutorial's commands, run as they stand on the first ratings of MovieLens."""

import shlex
import subprocess

import pyarrow.parquet as pq
import pytest

from ctr_trainer import cli
from ctr_trainer.features.spec import FeatureSpec
from tests.docs import page
from tests.parallel import launch

TUTORIAL = (page.DOCS / "tutorial.md").read_text()
RATINGS = 10_000


@pytest.fixture
def checkout(tmp_path, monkeypatch, real_data):
    """A directory with what the commands need of a checkout, and the data where the tutorial puts them."""
    for name in ("ctr_trainer", "examples", "run.sh"):
        (tmp_path / name).symlink_to(page.ROOT / name)
    (tmp_path / "ml-1m").mkdir()
    for name in ("users.dat", "movies.dat"):
        (tmp_path / "ml-1m" / name).symlink_to(real_data / "movielens" / name)
    with open(real_data / "movielens" / "ratings.dat", encoding="latin-1") as ratings:
        lines = [next(ratings) for _ in range(RATINGS)]
    (tmp_path / "ml-1m" / "ratings.dat").write_text("".join(lines), encoding="latin-1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_feature_spec_it_shows_is_that_of_the_repository(tmp_path):
    (shown,) = page.blocks(TUTORIAL, "toml")
    head = 'name = "movielens"\nids = ["user_id", "movie_id", "timestamp"]\n'
    (tmp_path / "shown.toml").write_text(head + shown)
    kept = FeatureSpec.load(page.ROOT / "examples" / "movielens" / "movielens.toml")
    assert FeatureSpec.load(tmp_path / "shown.toml") == kept


@pytest.mark.integration
@pytest.mark.slow
def test_its_commands_lead_from_the_raw_file_to_a_prediction(checkout, capsys):
    fetch, *commands = [line for block in page.blocks(TUTORIAL, "bash") for line in block.splitlines()]
    assert fetch.startswith("curl") and commands.pop(0).startswith("unzip")
    ran = []
    for command in commands:
        program, *arguments = shlex.split(command)
        ran.append(arguments[2] if arguments[:1] == ["-m"] else program)
        if arguments[:1] == ["-m"]:
            assert cli.main(arguments[2:]) == 0, command
        else:
            environment = launch.environment()
            done = subprocess.run(shlex.split(command), env=environment, capture_output=True, text=True, timeout=240)
            assert done.returncode == 0, done.stdout + done.stderr
    assert ran == ["python", "convert", "horovodrun", "evaluate", "predict", "export"]
    assert f'"examples": {RATINGS // 10}' in capsys.readouterr().out
    assert pq.read_table("scores.parquet").num_rows == RATINGS // 10
    (program,) = page.blocks(TUTORIAL, "python")
    exec(program, {})
    known, unknown = map(float, capsys.readouterr().out.strip(" []\n").split())
    assert 0 < known < 1 and 0 < unknown < 1 and known != unknown
