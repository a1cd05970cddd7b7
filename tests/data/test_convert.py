import gzip
import json
import logging
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_trainer.commands.convert import format_summary
from ctr_trainer.data.dataset import open_dataset
from ctr_trainer.data.observations import form
from ctr_trainer.data.parquet import ForeignParquet, scan
from ctr_trainer.data.source import list_files
from ctr_trainer.features.hashing import keys
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.messages.errors import UserError
from tests.data.make import CONFIGS, SPEC, make_rows, read, run, write


def criteo():
    return FeatureSpec.load(CONFIGS / "criteo.toml")


def criteo_row(label="0", dense="", sparse="a"):
    return "\t".join([label, *[dense] * 13, *[sparse] * 26]) + "\n"


_TYPICAL = FeatureSpec.from_dict(
    SPEC.to_dict()
    | {"ids": ["row", "member"], "sparse": [{"name": n, "dim": 2} for n in ("c", "user", "member", "empty", "code")]}
)


@pytest.mark.parametrize("split", [None, "random:0.8,0.2"])
def test_the_most_frequent_text_is_kept_unless_it_may_be_one_persons_id(tmp_path, split):
    # A user has 3% of the rows; an id is never kept; an empty field is no value; blanks are a part of a value.
    lines = [f"{i},{i % 2},1,1,{'red' if i % 3 else 'blue'},a,u{i % 33},m,{'' if i % 4 else 'x'}," for i in range(999)]
    lines = [line + (" 7" if i % 2 else "5") for i, line in enumerate(lines)]
    source = write(tmp_path / "a.csv", "row,y,x,w,c,tags,user,member,empty,code\n" + "\n".join(lines) + "\n")
    summary = run("csv", source, tmp_path / "out", _TYPICAL, split)
    assert format_summary(summary).count("100.0%") == 1  # the one dense feature; a text has no mean
    parts = summary["parts"]
    for info in parts.values():
        read_again = open_dataset(info.path).statistics
        found = {name: each["typical"] for name, each in read_again.items() if "typical" in each}
        assert found == {"c": "red", "empty": "x", "code": "5"}
    few = write(tmp_path / "few.csv", "row,y,x,w,c,tags,user,member,empty,code\n" + "\n".join(lines[:99]) + "\n")
    forms = {"c": {"form": "aaa"}, "user": {"form": "a77"}, "member": {"form": "a"}, "empty": {"form": "a"}}
    statistics = run("csv", few, tmp_path / "few", _TYPICAL)["parts"]["all"].statistics
    assert {name: statistics[name] for name in forms} == forms


@pytest.mark.parametrize(
    ("values", "expected"),
    [(["7.0", "13.0", "25.0"], "77.0"), ([7, 12, 105, 31], "77"), (["+7", "07", "+12", "+30"], "+7"),
     ([b"M\xc3\xa4rz", "Juni"], "Aaaa"), ([""], ""), ([], ""), (["u_1-x" * 20], "a_7-a" * 6)],
)  # fmt: skip
def test_the_form_of_values_shows_how_they_are_written_and_none_of_them(values, expected):
    assert form(values) == expected


def test_columns_hold_keys_numbers_and_labels(tmp_path):
    source = write(tmp_path / "a.csv", "row,y,x,w,c,tags\n7,1,2.5,0.5,red,a||b\n8,0,,2,,\n")
    run("csv", source, tmp_path / "out", SPEC)
    table = read(tmp_path / "out")
    assert table["c"].to_pylist() == keys("c", pa.array(["red", None])).tolist()
    assert table["tags"].to_pylist() == [keys("tags", pa.array(["a", "b"])).tolist(), []]
    assert table["label"].to_pylist() == [1, 0]
    assert table["weight"].to_pylist() == [0.5, 2]
    assert table["id:row"].to_pylist() == ["7", "8"]
    x = table["x"].to_numpy()
    assert x.dtype == np.float32 and x[0] == 2.5 and np.isnan(x[1])


def test_what_is_never_missing_is_written_so_and_an_id_may_be(tmp_path):
    source = write(tmp_path / "a.csv", "row,y,x,w,c,tags\n7,1,2.5,0.5,red,a||b\n,0,,2,,\n")
    run("csv", source, tmp_path / "out", SPEC)
    (file,) = open_dataset(tmp_path / "out").files
    schema = pq.read_schema(tmp_path / "out" / file["name"])
    assert [field.name for field in schema if field.nullable] == ["id:row"]
    assert not schema.field("tags").type.value_field.nullable
    assert read(tmp_path / "out")["id:row"].to_pylist() == ["7", None]


def test_the_summary_counts_what_was_written(tmp_path):
    info = open_dataset(make_rows(tmp_path, 50))
    assert (info.rows, info.bad_rows, info.label_mean) == (50, 0, 0.5)
    assert info.distinct == {"c": 3, "row": 50, "tags": 3}
    assert info.statistics["x"] == pytest.approx(dict(mean=24.5, std=np.arange(50).std(), min=0, max=49, count=50))
    assert [f["rows"] for f in info.files] == [30, 20]
    assert [f["row_groups"] for f in info.files] == [[7, 7, 7, 7, 2], [7, 7, 6]]
    assert info.spec == SPEC


@pytest.mark.parametrize(
    "row, parts",
    [
        (criteo_row(label="2"), ["'label'", "'2'", "0 or 1"]),
        (criteo_row(label=""), ["'label'", "None", "0 or 1"]),
        (criteo_row(dense="1x"), ["'I1'", "'1x'", "a finite number"]),
        (criteo_row(dense="inf"), ["'I1'", "'inf'", "a finite number"]),
        ("0\t1\t2\n", ["40 fields", "it has 3"]),
    ],
)
def test_a_bad_row_is_named_and_budgeted(tmp_path, caplog, row, parts):
    good = criteo_row(dense="1")
    source = write(tmp_path / "a.tsv", good + "\n" + "0\n" + row + good)
    with pytest.raises(UserError, match="a.tsv, line 3.*max_bad_rows"):
        run("criteo", source, tmp_path / "none", criteo())
    with pytest.raises(UserError) as error:
        run("criteo", source, tmp_path / "one", criteo(), max_bad_rows=1)
    for part in ["a.tsv", "line 4" if "fields" in parts[0] else "line", *parts]:
        assert part in str(error.value)
    with pytest.raises(UserError, match="run `convert` first"):
        open_dataset(tmp_path / "one")
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        summary = run("criteo", source, tmp_path / "two", criteo(), max_bad_rows=2)
    assert summary["bad_rows"] == 2 and open_dataset(tmp_path / "two").rows == 2
    lines = sorted(r.getMessage().split("line ")[1].split(",")[0].split(":")[0] for r in caplog.records)
    assert lines == ["3", "4"]


def test_bad_rows_are_reported_in_the_order_of_the_input(tmp_path, caplog):
    rows = ["a,0,0,1,a,", "b,0,x,1,a,", "c,2,0,1,a,", "d,0", "e,x,0,1,a,", "f,0,0,x,a,"]
    source = write(tmp_path / "a.csv", "row,y,x,w,c,tags\n" + "".join(f"{row}\n" for row in rows))
    run("csv", source, tmp_path / "out", SPEC, max_bad_rows=5)
    lines = [r.getMessage().split("line ")[1].split(",")[0].split(":")[0] for r in caplog.records]
    assert lines == ["3", "4", "5", "6", "7"]
    with pytest.raises(UserError, match="line 3, column 'x'"):
        run("csv", source, tmp_path / "none", SPEC)
    table = pa.table({"row": ["a", "b"], "y": [0, 2], "x": ["x", "1"], "w": [1, 1], "c": ["a"] * 2, "tags": ["a"] * 2})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(UserError, match="row 1, column 'x'"):
        ForeignParquet(scan(tmp_path / "a.parquet", SPEC), SPEC, {}).read(0)


def test_only_the_first_fault_of_a_row_counts(tmp_path):
    source = write(tmp_path / "a.tsv", criteo_row(label="x", dense="y"))
    with pytest.raises(UserError, match="has no rows"):
        run("criteo", source, tmp_path / "out", criteo(), max_bad_rows=1)


def test_text_that_is_not_utf8_is_no_label_and_no_value(tmp_path):
    spec = FeatureSpec.load(CONFIGS / "adult.toml")
    fields = ["1"] * 14 + [">50K"]
    rows = [", ".join(fields), ", ".join([*fields[:14], "\udcff"]), ", ".join([*fields[:1], "\udcff", *fields[2:]])]
    for row, column in enumerate(("income", "workclass"), 1):
        source = write(tmp_path / "a.csv", "\n".join([rows[0], rows[row]]).encode(errors="surrogateescape"))
        with pytest.raises(UserError, match=f"a.csv, line 2, column '{column}'.*xff.*UTF-8"):
            run("csv", source, tmp_path / "out", spec)
        assert run("csv", source, tmp_path / column, spec, max_bad_rows=1)["bad_rows"] == 1


def test_a_header_names_the_columns_and_counts_as_line_1(tmp_path):
    source = write(tmp_path / "a.csv", "row,y,x,w,c,tags\n\n1,1,1,-1,a,b\n")
    with pytest.raises(UserError, match="a.csv, line 3, column 'w': '-1' is not a weight of at least 0"):
        run("csv", source, tmp_path / "out", SPEC)


def test_a_missing_column_is_named_with_what_wants_it(tmp_path):
    source = write(tmp_path / "a.csv", "row,y,w,c,tags\n1,1,1,a,b\n")
    with pytest.raises(UserError, match="a.csv: no column 'x'.*feature 'x'.*row, y, w, c, tags"):
        run("csv", source, tmp_path / "out", SPEC)


@pytest.mark.parametrize("row", [criteo_row("1", dense="2.5"), criteo_row("", dense="2.5").removeprefix("\t")])
def test_an_unlabelled_file_without_a_header_may_lack_the_labels_column(tmp_path, row):
    source = write(tmp_path / "test.txt", 3 * row)
    run("criteo", source, tmp_path / "out", criteo().without_labels())
    table = read(tmp_path / "out")
    assert table["I1"].to_pylist() == [2.5] * 3
    assert table["C26"].to_pylist() == keys("C26", pa.array(["a"] * 3)).tolist()
    assert "label" not in table.column_names
    info = open_dataset(tmp_path / "out")
    assert (info.rows, info.label_mean, info.spec.labelled) == (3, None, False)


def test_unlabelled_rows_of_another_number_of_fields_are_bad(tmp_path):
    source = write(tmp_path / "test.txt", "1\ta\n")
    with pytest.raises(UserError, match="a row of 40 fields"):
        run("criteo", source, tmp_path / "out", criteo().without_labels())


def test_several_files_and_gzip_are_read_in_order(tmp_path):
    (tmp_path / "b.tsv.gz").write_bytes(gzip.compress(criteo_row(dense="2").encode()))
    write(tmp_path / "a.tsv", criteo_row(dense="1"))
    run("criteo", str(tmp_path / "*.tsv*"), tmp_path / "out", criteo())
    assert read(tmp_path / "out")["I1"].to_pylist() == [1, 2]
    run("criteo", [tmp_path / "b.tsv.gz", tmp_path / "a.tsv"], tmp_path / "turned", criteo())
    assert read(tmp_path / "turned")["I1"].to_pylist() == [2, 1]
    with pytest.raises(UserError, match="nothing.*no such file"):
        run("criteo", str(tmp_path / "nothing*"), tmp_path / "none", criteo())


def test_a_file_that_is_there_twice_is_refused(tmp_path):
    for day in (1, 10):
        write(tmp_path / f"day_{day}.csv", "row,y,x,w,c,tags\n0,0,0,1,a,\n")
    with pytest.raises(UserError, match="input .*day_10.csv: it is there twice.*overlapping.*list it once"):
        run("csv", [tmp_path / "day_1*", tmp_path / "day_10.csv"], tmp_path / "out", SPEC)


@pytest.mark.parametrize("target", ["../elsewhere", "nothing", "..", "_hidden/day=1", ".hidden"])
def test_a_link_to_a_directory_or_to_nothing_is_not_left_out_in_silence(tmp_path, target):
    for name in ("rows", "elsewhere"):
        (tmp_path / name / "day=1").mkdir(parents=True)
        write(tmp_path / name / "day=1" / "a.csv", "y,x\n1,2\n")
    (tmp_path / "rows" / "b.csv").symlink_to(tmp_path / "elsewhere" / "day=1" / "a.csv")
    (tmp_path / "rows" / "_hidden").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "rows" / ".hidden").mkdir()
    assert len(list_files(tmp_path / "rows")) == 2
    (tmp_path / "rows" / "day=2").symlink_to(target)
    with pytest.raises(UserError, match="rows: day=2 is a link to a directory elsewhere or to nothing, .*; list"):
        list_files(tmp_path / "rows")
    (tmp_path / "rows" / "day=2").rename(tmp_path / "rows" / "_day=2")
    (tmp_path / "rows" / "latest").symlink_to("day=1")  # Its files are read anyway.
    os.mkfifo(tmp_path / "rows" / "pipe")
    assert len(list_files(tmp_path / "rows")) == 2


def test_a_split_by_time_sorts_and_cuts(tmp_path):
    times = [5, 1, 4, 1, 3, 9, 2, 8, 7, 6]
    source = write(tmp_path / "a.csv", "row,y,x,w,c,tags\n" + "".join(f"{i},1,{t},1,a,\n" for i, t in enumerate(times)))
    run("csv", source, tmp_path / "out", SPEC, split="time:0.5,0.2,0.3:x")
    parts = [sorted(read(tmp_path / "out" / p)["x"].to_pylist()) for p in ("train", "valid", "test")]
    assert parts == [[1, 1, 2, 3, 4], [5, 6], [7, 8, 9]]
    # Every part has the training part's statistics.
    assert {open_dataset(tmp_path / "out" / p).statistics["x"]["max"] for p in ("train", "valid", "test")} == {4}
    assert not (tmp_path / "out" / ".unsplit").exists()


def test_a_split_by_the_dates_of_directories(tmp_path):
    for day in (2, 1):
        (directory := tmp_path / "in" / f"day=2024-01-0{day}").mkdir(parents=True)
        write(directory / "a.csv", f"row,y,x,w,c,tags\n{day},1,0,1,a,\n")
    run("csv", tmp_path / "in", tmp_path / "out", SPEC, split="time:0.5,0.5:day")
    assert read(tmp_path / "out" / "train")["id:row"].to_pylist() == ["1"]


def test_null_values_are_missing_in_the_names_of_directories(tmp_path):
    for city in ("NA", "a"):
        (directory := tmp_path / "in" / f"city={city}").mkdir(parents=True)
        write(directory / "a.csv", "y,x\n1,2\n")
    form = {"csv": {"null_values": ["", "NA"]}, "sparse": [{"name": "city", "dim": 2}]}
    spec = FeatureSpec.from_dict({"name": "n", "label": {"column": "y"}, **form})
    run("csv", tmp_path / "in", tmp_path / "out", spec)
    assert read(tmp_path / "out")["city"].to_pylist() == keys("city", pa.array([None, "a"])).tolist()


@pytest.mark.parametrize("split", ["random", "random:0.8,0.1", "random:1.1,-0.1", "time:0.8,0.2", "random:0.8,0.2:x"])
def test_a_split_that_makes_no_sense_is_refused(tmp_path, split):
    with pytest.raises(UserError, match="split"):
        run("criteo", "none.tsv", tmp_path / "out", criteo(), split=split)


def test_format_summary_has_a_line_a_part_and_a_feature(tmp_path):
    make_rows(tmp_path, 10)
    summary = run("csv", tmp_path / "rows.csv", tmp_path / "out", SPEC, split="random:0.8,0.2")
    text = format_summary(summary)
    assert [line.split()[:2] for line in text.splitlines()[2:4]] == [["train", "8"], ["test", "2"]]
    assert any(line.split() == ["tags", "3"] for line in text.splitlines())
    assert json.loads((tmp_path / "out" / "train" / "_dataset.json").read_text())["rows"] == 8


def test_criteos_head_loses_no_row(real_data, tmp_path):
    summary = run("criteo", real_data / "criteo" / "train_head.tsv", tmp_path / "out", criteo())
    lines = (real_data / "criteo" / "train_head.tsv").read_text().splitlines()
    fields = np.array([line.split("\t") for line in lines])
    info = summary["parts"]["all"]
    assert info.rows == len(lines) == 10_000
    assert info.label_mean == pytest.approx(np.mean(fields[:, 0] == "1"))
    assert info.distinct["C3"] == len(set(fields[:, 16]))
    table = read(tmp_path / "out")
    assert table["C26"].to_pylist() == keys("C26", pa.array(fields[:, 39].tolist())).tolist()
    assert np.isnan(table["I1"].to_numpy()).sum() == np.sum(fields[:, 1] == "")


def test_adult_converts_with_both_spellings_of_its_labels(real_data, tmp_path):
    spec = FeatureSpec.load(CONFIGS / "adult.toml")
    for name, rows in (("adult.data", 32_561), ("adult.test", 16_281)):
        info = run("csv", real_data / "adult" / name, tmp_path / name, spec)["parts"]["all"]
        lines = [line for line in (real_data / "adult" / name).read_text().splitlines() if line.strip()]
        assert info.rows == len(lines) == rows
        assert info.label_mean == pytest.approx(np.mean([">50K" in line for line in lines]))
        assert info.distinct["workclass"] == len({line.split(", ")[1] for line in lines})
        assert info.statistics["age"]["mean"] == pytest.approx(np.mean([int(line.split(", ")[0]) for line in lines]))
