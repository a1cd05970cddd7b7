"""Where `convert` writes, and what it leaves alone."""

import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_trainer.system.files.lease import InUse
from ctr_trainer.system.files.outputs import UNFINISHED as MARKER
from ctr_trainer.system.files.outputs import unfinished
from ctr_trainer.system.messages.errors import UserError
from tests.data.make import SPEC, make_rows, read, run, write


def test_an_existing_data_set_is_not_overwritten(tmp_path):
    output = make_rows(tmp_path, 5)
    with pytest.raises(UserError, match="contains a data set already"):
        run("csv", tmp_path / "rows.csv", output, SPEC)


def spark(path):
    """Files of others, named as convert names its own."""
    path.mkdir()
    for name in ("part-00000.parquet", "part-00007-c000.snappy.parquet", "notes.txt"):
        (path / name).write_text("mine")
    return path


def test_files_of_others_are_never_removed(tmp_path):
    source = write(tmp_path / "a.csv", "row,y,x,w,c,tags\n1,1,1,1,a,\n")
    output = spark(tmp_path / "out")
    with pytest.raises(UserError, match="out holds files that are not of .* conversion: notes.txt, part-00000.parquet"):
        run("csv", source, output, SPEC)
    with pytest.raises(UserError, match="out holds files that are not of"):
        run("csv", source, tmp_path / "out", SPEC, split="random:0.5,0.5")
    assert {file.read_text() for file in output.iterdir()} == {"mine"} and len(list(output.iterdir())) == 3


def test_an_unfinished_conversion_begins_anew_and_keeps_files_of_others(tmp_path):
    good = write(tmp_path / "a.csv", "row,y,x,w,c,tags\n" + 40 * "1,1,1,1,a,\n")
    bad = write(tmp_path / "b.csv", "row,y,x,w,c,tags\n" + 40 * "1,1,1,1,a,\n" + "1,7,1,1,a,\n")
    few, output = dict(rows_per_file=10, rows_per_group=10), tmp_path / "new" / "out"
    with pytest.raises(UserError, match="line 42"):
        run("csv", bad, output, SPEC, split="random:0.5,0.5", **few)
    assert output.exists() is False  # nothing was written before the row was met
    with unfinished(output, "conversion") as left:  # as a conversion that was killed leaves it
        for name in ("part-00000.parquet", "part-00009.parquet", ".unsplit/part-00000.parquet"):
            left.add(name).write_text("")
        with pytest.raises(InUse, match=f"process {os.getpid()} on .* writes this conversion now"):
            run("csv", good, output, SPEC)
    (output / "part-00008.parquet").write_text("mine")
    with pytest.raises(UserError, match="part-00008.parquet; name another directory, or move them away"):
        run("csv", good, output, SPEC)
    assert (output / "part-00009.parquet").exists()
    (output / "part-00008.parquet").unlink()
    run("csv", good, output, SPEC, **few)
    assert sorted(os.listdir(output)) == ["_dataset.json", *(f"part-0000{i}.parquet" for i in range(4))]


# Converts as the command line does, and kills itself once the third file is being written.
KILLED = """
import os, signal, sys
from ctr_trainer.data.conversion import writer
from ctr_trainer.data.conversion.convert import convert
from tests.data.make import SPEC
write_group = writer.DatasetWriter._write_group
def write_and_die(self, group):
    write_group(self, group)
    if len(self.files) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
writer.DatasetWriter._write_group = write_and_die
convert("csv", sys.argv[1], sys.argv[2], SPEC, rows_per_file=20, rows_per_group=10, progress=False)
"""


def test_a_killed_conversion_leaves_only_what_the_next_one_may_remove(tmp_path):
    source = write(tmp_path / "a.csv", "row,y,x,w,c,tags\n" + 100 * "1,1,1,1,a,\n")
    assert subprocess.run([sys.executable, "-c", KILLED, source, tmp_path / "out"], timeout=300).returncode == -9
    left = sorted(os.listdir(tmp_path / "out"))
    expected = [MARKER, f"{MARKER}.lock", "part-00000.parquet", "part-00001.parquet"]
    assert left[:4] == expected and len(left) == 5  # and a draft
    run("csv", source, tmp_path / "out", SPEC)
    assert sorted(os.listdir(tmp_path / "out")) == ["_dataset.json", "part-00000.parquet"]
    assert len(read(tmp_path / "out")) == 100


def test_an_input_in_the_output_and_an_output_in_the_input_are_refused(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    write(logs / "a.csv", "row,y,x,w,c,tags\n1,1,1,1,a,\n")
    (tmp_path / "link").symlink_to(logs)
    (tmp_path / "one.csv").symlink_to(logs / "a.csv")
    for source, output in (
        (logs / "a.csv", logs),
        (logs / "a.csv", tmp_path / "link"),
        (tmp_path / "one.csv", logs),
        (str(tmp_path / "link" / "*.csv"), logs),
        (logs / "a.csv", tmp_path),
    ):
        with pytest.raises(UserError, match="output .*: the input .* is in it and would be overwritten"):
            run("csv", source, output, SPEC)
    pq.write_table(pa.table({"y": [1]}), logs / "b.parquet")
    (logs / "a.csv").unlink()
    for source, output, why in (
        (logs, logs / "out", "is inside the input"),
        (tmp_path / "link", logs / "out", "is inside the input"),
        (logs, tmp_path / "link" / "out", "is inside the input"),
        (str(tmp_path / "log*"), tmp_path / "logs" / "out", "is inside the input"),
        (str(logs / "*"), logs / "out", "matches it"),
        (str(logs / "*"), logs / "out" / "deep", "matches it"),
    ):
        with pytest.raises(UserError, match=why):
            run("parquet", source, output, SPEC)
    assert [path.name for path in logs.iterdir()] == ["b.parquet"]
