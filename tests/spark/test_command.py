"""`convert --engine=spark`, as a user types it."""

import os
import pathlib
import shutil
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_trainer.data.convert import convert
from ctr_trainer.data.dataset import open_dataset
from tests.data import foreign

pytest.importorskip("pandas", reason="Spark's tests need pandas: pip install 'ctr_trainer[spark]'")
pytest.importorskip("pyspark", reason="Spark's tests need PySpark: pip install 'ctr_trainer[spark]'")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not shutil.which("java"), reason="Spark's tests need Java 17: apt install default-jre-headless"),
]
ROOT = pathlib.Path(__file__).parents[2]
ROWS, _SECONDS = 60, 240


def _read(path):
    return pa.concat_tables([pq.read_table(path / file["name"]) for file in open_dataset(path).files])


def test_the_command_converts_as_the_local_engine_does_and_says_what_it_did(tmp_path):
    clicks, spec = foreign.write_spark(tmp_path / "clicks", ROWS), tmp_path / "spec.toml"
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
        timeout=_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path / 'spark'}: " in done.stdout and "0 bad rows left out" in done.stdout
    convert("parquet", clicks, tmp_path / "here", foreign.SPEC, progress=False)
    by_spark, here = (list(map(repr, _read(tmp_path / name).to_pylist())) for name in ("spark", "here"))
    assert by_spark == here and len(here) == ROWS
