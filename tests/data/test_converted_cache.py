"""Sources that are converted on first use, by one process."""

import os
import threading

import pytest

from ctr_trainer.data import parquet
from ctr_trainer.data.conversion import converted_cache
from ctr_trainer.features import toml
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.files.lease import InUse
from ctr_trainer.system.files.outputs import unfinished
from ctr_trainer.system.messages.errors import UserError
from tests import small
from tests.data import foreign
from tests.data.make import read

ROWS = 500


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "_ROWS", 10)  # Rows that are read at a time.
    return foreign.write_spark(tmp_path / "clicks", ROWS)


def convert(source, directory, **options):
    return converted_cache.converted(str(source), "parquet", foreign.SPEC, directory, **options)


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
    with unfinished(path, "conversion"):
        with pytest.raises(UserError, match=f"process {os.getpid()} on .* has written nothing for 1 s"):
            convert(source, tmp_path / "cache", timeout=1.0)


def test_files_that_arrive_during_a_wait_are_not_of_the_conversion(source, tmp_path, monkeypatch):
    real, calls = converted_cache.convert, []

    def convert_after_another(*given, **options):
        calls.append(given)
        if len(calls) == 1:  # Another process is killed in the conversion, while a file arrives.
            foreign.write_spark(source / "later", 50)
            raise InUse("process 7 writes this conversion now")
        return real(*given, **options)

    monkeypatch.setattr(converted_cache, "convert", convert_after_another)
    first = convert(source, tmp_path / "cache")
    assert len(read(first)) == ROWS and len(calls) == 2
    second = convert(source, tmp_path / "cache")
    assert len(read(second)) == ROWS + 50 and first != second


def test_a_file_that_is_gone_after_another_process_has_converted_it_is_refused(source, tmp_path, monkeypatch):
    real = converted_cache.convert

    def convert_elsewhere(*given, **options):
        real(*given, **options)
        next(source.glob("**/*.parquet")).unlink()
        raise InUse("process 7 writes this conversion now")

    monkeypatch.setattr(converted_cache, "convert", convert_elsewhere)
    with pytest.raises(UserError, match="has changed while it was converted"):
        convert(source, tmp_path / "cache")
    assert [*(tmp_path / "cache").glob("*/_dataset.json")]  # The other process may have read the file in time.


def test_a_file_that_grows_while_it_is_converted_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "rows.csv"
    small.write_csv(path, 50)
    real, spec = converted_cache.convert, FeatureSpec.from_dict(toml.tomllib.loads(small.SPEC))

    def convert_while_another_writes(*given, **options):
        real(*given, **options)
        with open(path, "a") as file:
            file.write("r51,1,")

    monkeypatch.setattr(converted_cache, "convert", convert_while_another_writes)
    with pytest.raises(UserError, match="rows.csv has changed while it was converted"):
        converted_cache.converted(str(path), "csv", spec, tmp_path / "cache")
    assert not any((tmp_path / "cache").iterdir())


def test_a_conversion_does_not_depend_on_dims_limits_or_a_lookups_place(tmp_path):
    (tmp_path / "a.csv").write_text("y,item\n0,a\n1,b\n")
    paths = []
    limited = [{"table": "dim3", "ttl_steps": 5}]
    for place, cost, dim, limits in (("one", 1, 2, []), ("two", 1, 3, limited), ("two", 2, 3, [])):
        (tmp_path / place).mkdir(exist_ok=True)
        (tmp_path / place / "items.csv").write_text(f"item,cost\na,{cost}\n")
        values = {"name": "s", "label": {"column": "y"}, "sparse": [{"name": "item", "dim": dim}], "limits": limits}
        values |= {"dense": [{"name": "cost"}], "lookup": [{"name": "cost", "file": "items.csv", "key": "item"}]}
        spec = FeatureSpec.from_dict(values, directory=tmp_path / place)
        paths.append(converted_cache.converted(str(tmp_path / "a.csv"), "csv", spec, tmp_path / "cache"))
    assert paths[0] == paths[1] != paths[2]


def test_a_cache_in_the_source_is_refused(source):
    with pytest.raises(UserError, match="is inside the input"):
        convert(source, source / "cache")
