"""Sources that are converted on first use: by one process, and from where a killed one stood."""

import json
import os
import subprocess
import sys
import threading

import pytest

from ctr_trainer.data import parquet
from ctr_trainer.data.conversion import converted_cache
from ctr_trainer.system.files.outputs import Unfinished
from ctr_trainer.system.messages.errors import UserError
from tests.data import foreign
from tests.data.make import read

ROWS = 500

# Converts as a job does, and kills itself in the sixth row group, when two files of two groups each are whole.
KILLED = """
import os, signal, sys
from ctr_trainer.data.conversion import converted_cache
from tests.data import foreign
from tests.data.test_converted_cache import small_files
small_files(setattr)
def advanced(text):
    if int(text.split()[-2]) > 250:
        os.kill(os.getpid(), signal.SIGKILL)
converted_cache.converted(sys.argv[1], "parquet", foreign.SPEC, sys.argv[2], progress=False, advanced=advanced)
"""


def small_files(set_value):
    """Files of 100 rows, of which the source is read 10 at a time."""
    set_value(converted_cache, "ROWS_PER_FILE", 100)
    set_value(converted_cache, "_ROWS_PER_GROUP", 50)
    set_value(parquet, "_ROWS", 10)


@pytest.fixture
def source(tmp_path, monkeypatch):
    small_files(monkeypatch.setattr)
    return foreign.write_spark(tmp_path / "clicks", ROWS)


def convert(source, directory, **options):
    return converted_cache.converted(str(source), "parquet", foreign.SPEC, directory, progress=False, **options)


def test_a_killed_conversion_continues_after_its_whole_files(source, tmp_path, caplog):
    arguments = [sys.executable, "-c", KILLED, source, tmp_path / "cache"]
    assert subprocess.run(arguments, timeout=300).returncode == -9
    (draft,) = (tmp_path / "cache").iterdir()
    kept = {name: (draft / name).stat().st_mtime_ns for name in ("part-00000.parquet", "part-00001.parquet")}
    told = []
    with caplog.at_level("INFO"):
        path = convert(source, tmp_path / "cache", advanced=told.append)
    assert "continues after the 200 rows" in caplog.text
    assert {name: os.stat(os.path.join(path, name)).st_mtime_ns for name in kept} == kept
    assert told[-1].endswith(f"on first use: {ROWS} rows") and len(told) > 40
    anew = convert(source, tmp_path / "anew")
    assert repr(read(path).to_pydict()) == repr(read(anew).to_pydict())  # where NaN is NaN
    described = [json.loads(open(os.path.join(each, "_dataset.json")).read()) for each in (path, anew)]
    assert described[0].pop("statistics")["price"] == pytest.approx(described[1].pop("statistics")["price"])
    assert described[0] == described[1]
    assert sorted(os.listdir(path)) == sorted(os.listdir(anew)) and os.listdir(tmp_path / "cache") == [path[-20:]]


def test_of_two_at_once_one_converts_and_the_other_waits_for_it(source, tmp_path, caplog):
    begun, waited, paths, told = threading.Event(), threading.Event(), [], []

    def first(text):
        begun.set()
        waited.wait(30)

    def second(text):
        told.append(text)
        waited.set()

    thread = threading.Thread(target=lambda: paths.append(convert(source, tmp_path / "cache", advanced=first)))
    thread.start()
    assert begun.wait(30)
    paths.append(convert(source, tmp_path / "cache", advanced=second))
    thread.join()
    assert paths[0] == paths[1] and len(read(paths[0])) == ROWS
    assert all(f"process {os.getpid()} on " in text and "writes this conversion now" in text for text in told)
    assert os.listdir(tmp_path / "cache") == [paths[0][-20:]]


def test_one_that_stands_still_is_named(source, tmp_path):
    path = convert(source, tmp_path / "cache")
    os.rename(path, f"{path}.moved")
    with Unfinished(f"{path}.unfinished", "conversion"):
        with pytest.raises(UserError, match=f"process {os.getpid()} on .* has written nothing for 1 s"):
            convert(source, tmp_path / "cache", timeout=1.0)


def test_what_is_left_of_a_source_that_has_changed_is_removed(source, tmp_path):
    (tmp_path / "cache" / "mine.unfinished").mkdir(parents=True)

    def stop(text):
        if " 300 rows" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "cache", advanced=stop)
    assert len(os.listdir(tmp_path / "cache")) == 2
    os.utime(next(source.rglob("*.parquet")), (1, 1))
    path = convert(source, tmp_path / "cache")
    assert sorted(os.listdir(tmp_path / "cache")) == sorted([path[-20:], "mine.unfinished"])


def test_a_cache_in_the_source_is_refused(source):
    with pytest.raises(UserError, match="is inside the input"):
        convert(source, source / "cache")
