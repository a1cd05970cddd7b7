"""Conversion by a real cluster of Spark, a master, two workers and their executors here, and by the command."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

from ctr_trainer.data.conversion.convert import convert as convert_here
from ctr_trainer.data.dataset import open_dataset
from ctr_trainer.system.messages.errors import UserError
from tests.data import foreign
from tests.data.make import SPEC, read

pytest.importorskip("pandas", reason="Spark's tests need pandas: pip install 'ctr_trainer[spark]'")
pyspark = pytest.importorskip("pyspark", reason="Spark's tests need PySpark: pip install 'ctr_trainer[spark]'")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not shutil.which("java"), reason="Spark's tests need Java 17: apt install default-jre-headless"),
]
ROOT = pathlib.Path(__file__).parents[2]
ROWS = 300


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    from pyspark.sql import SparkSession

    scratch = str(tmp_path_factory.mktemp("spark"))
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").appName("test")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.local.dir": scratch,
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.executor.memory": "512m",
        "spark.sql.warehouse.dir": scratch,
        "spark.sql.shuffle.partitions": "2",
    }.items():
        builder = builder.config(name, value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        session = builder.getOrCreate()
        application = session.sparkContext.applicationId
        yield session
        session.stop()
    # Workers of a local cluster keep the executors' logs next to PySpark.
    shutil.rmtree(pathlib.Path(pyspark.__file__).parent / "work" / application, ignore_errors=True)


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    return foreign.write_spark(tmp_path_factory.mktemp("source") / "clicks", ROWS)


def files_of(path):
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def test_parquet_of_a_cluster_and_of_this_machine_have_equal_columns(spark, clicks, tmp_path, monkeypatch):
    from ctr_trainer.data.spark import Layout, conversion, convert_files

    monkeypatch.setattr(conversion, "UNIT_BYTES", 20_000)

    summary = convert_files(spark, "parquet", str(clicks), tmp_path / "spark", foreign.SPEC, Layout(rows_per_group=50))
    convert_here("parquet", clicks, tmp_path / "here", foreign.SPEC, rows_per_group=50, progress=False)
    found, wanted = open_dataset(tmp_path / "spark"), open_dataset(tmp_path / "here")
    rows = [list(map(repr, read(tmp_path / name).to_pylist())) for name in ("spark", "here")]  # where NaN is NaN
    assert rows[0] == rows[1] and len(rows[0]) == ROWS
    assert (found.rows, found.distinct, found.label_mean) == (ROWS, wanted.distinct, wanted.label_mean)
    for name, figures in wanted.statistics.items():
        assert found.statistics[name] == pytest.approx(figures)
    (first, *_), (local, *_) = found.files, wanted.files
    metadata = [
        pq.ParquetFile(path) for path in (tmp_path / "spark" / first["name"], tmp_path / "here" / local["name"])
    ]
    assert metadata[0].schema_arrow.equals(metadata[1].schema_arrow)
    assert str(metadata[0].metadata.row_group(0).column(0).compression) == "LZ4"
    assert [sum(file["row_groups"]) for file in found.files] == [file["rows"] for file in found.files]
    assert 1 < len(found.files) < 8 and summary["parts"]["all"].rows == ROWS  # of 8 files, several a task
    assert files_of(tmp_path / "spark") == sorted(["_dataset.json", *(file["name"] for file in found.files)])


def write_texts(directory, bad=()):
    """Three CSV files of 100 rows; of the files in `bad`, row 50 has no label."""
    directory.mkdir()
    for number in range(3):
        rows = [f"{i},{i % 2},{i / 7},1,{i % 9},a{i % 7}|b{i}" for i in range(100 * number, 100 * number + 100)]
        if number in bad:
            rows[50] = rows[50].replace(",", ",?", 1)
        (directory / f"{number}.csv").write_text("\n".join(["row,y,x,w,c,tags", *rows]) + "\n")
    return str(directory / "*.csv")


def test_text_keeps_its_order_and_bad_rows_count_over_all_tasks(spark, tmp_path, monkeypatch):
    from ctr_trainer.data.spark import Layout, conversion

    monkeypatch.setattr(conversion, "UNIT_BYTES", 1000)  # a task per file
    source, output = write_texts(tmp_path / "texts", bad=(0, 2)), tmp_path / "spark"
    with pytest.raises(UserError, match=r"2.csv, line 52, column 'y': '\?0' is not .*\(now 1\)"):
        conversion.convert_files(spark, "csv", source, output, SPEC, Layout(max_bad_rows=1))
    assert not output.exists()
    summary = conversion.convert_files(spark, "csv", source, output, SPEC, Layout(max_bad_rows=2))
    convert_here("csv", source, tmp_path / "here", SPEC, max_bad_rows=2, progress=False)
    assert read(output).equals(read(tmp_path / "here"))
    assert [file["rows"] for file in open_dataset(output).files] == [99, 100, 99]
    assert summary["bad_rows"] == open_dataset(output).bad_rows == 2
    with pytest.raises(UserError, match="contains a data set already"):
        conversion.convert_files(spark, "csv", source, output, SPEC, Layout(max_bad_rows=2))


def test_a_split_gives_each_row_to_one_part(spark, tmp_path):
    from ctr_trainer.data.spark import Layout, convert_files

    source = write_texts(tmp_path / "texts")
    parts = convert_files(spark, "csv", source, tmp_path / "out", SPEC, Layout(split="random:0.8,0.2"))["parts"]
    assert {name: part.rows for name, part in parts.items()} == pytest.approx({"train": 240, "test": 60}, abs=30)
    ids = [value for part in parts for value in read(tmp_path / "out" / part)["id:row"].to_pylist()]
    assert sorted(map(int, ids)) == list(range(300))
    assert parts["test"].statistics == parts["train"].statistics


def test_a_task_that_is_killed_is_done_again_and_its_rows_are_there_once(spark, tmp_path):
    from ctr_trainer.data.spark import Layout, convert

    def rows(batches):
        from pyspark import TaskContext

        yield from batches
        if TaskContext.get().partitionId() == 1 and TaskContext.get().attemptNumber() == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    columns = ["row", "y", "x", "w", "c", "tags"]
    values = [(i, i % 2, i / 7, 1.0, str(i % 9), [f"a{i % 7}"]) for i in range(200)]
    frame = spark.createDataFrame(values, columns).repartition(2)
    frame = frame.mapInArrow(rows, frame.schema)
    info = convert(frame, SPEC, tmp_path / "out", Layout(rows_per_group=20))["parts"]["all"]
    assert sorted(read(tmp_path / "out")["id:row"].to_pylist()) == list(range(200))
    assert (info.rows, len(info.files)) == (200, 2)
    assert files_of(tmp_path / "out") == sorted(["_dataset.json", *(file["name"] for file in info.files)])
    assert np.allclose(info.statistics["x"]["mean"], np.arange(200).mean() / 7)


def test_what_spark_cannot_do_is_said(spark, tmp_path):
    from ctr_trainer.data.spark import Layout, convert, convert_files

    frame = spark.createDataFrame([(1, 2)], ["row", "x"])
    with pytest.raises(UserError, match="the DataFrame: no column 'y'"):
        convert(frame, SPEC, tmp_path / "out")
    with pytest.raises(UserError, match="not synthetic: use engine=local"):
        convert_files(spark, "synthetic", str(tmp_path), tmp_path / "out", SPEC)
    with pytest.raises(UserError, match="supports only random splits"):
        convert_files(
            spark, "csv", write_texts(tmp_path / "texts"), tmp_path / "out", SPEC, Layout(split="time:0.5,0.5:x")
        )


def test_the_command_converts_as_the_local_engine_does_and_says_what_it_did(clicks, tmp_path, monkeypatch):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)  # The command sets it.
    spec = tmp_path / "spec.toml"
    spec.write_text(foreign.TOML)
    settings = f"--master local[2] --conf spark.ui.enabled=false --conf spark.local.dir={tmp_path / 'scratch'}"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ctr_trainer", "convert", "--engine=spark", "--format=parquet"),
            *(f"--input={clicks}", f"--output={tmp_path / 'spark'}", f"--feature_spec={spec}"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_SUBMIT_ARGS": f"{settings} pyspark-shell"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path / 'spark'}: " in done.stdout and "0 bad rows left out" in done.stdout
    convert_here("parquet", clicks, tmp_path / "here", foreign.SPEC, progress=False)
    by_spark, here = (list(map(repr, read(tmp_path / name).to_pylist())) for name in ("spark", "here"))
    assert by_spark == here and len(here) == ROWS


def test_a_notebooks_own_session_lives_on(spark):
    from ctr_trainer.data.spark.conversion import session

    with session() as found:
        assert found is spark
    assert spark.range(3).count() == 3
