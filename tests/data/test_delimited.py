"""Delimited text as it comes: quotes, line breaks, encodings, damage. Each line is a row, or is accounted for."""

import bz2
import csv
import gzip
import random
import re

import pyarrow as pa
import pytest

from ctr_trainer.data.blocks import BadRows
from ctr_trainer.data.conversion import delimited
from ctr_trainer.data.conversion.convert import convert
from ctr_trainer.data.source import list_files
from ctr_trainer.features.columns import CsvFormat
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.messages.errors import UserError

FORM = CsvFormat(header=False, columns=("a", "b"))
COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".zst": lambda b: pa.compress(b, "zstd", asbytes=True)}


def read(tmp_path, text, form=FORM, budget=0, name="a.csv"):
    """Returns ([(line, fields)], BadRows) of a file of these bytes."""
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    bad_rows, found = BadRows(budget), []
    for block in delimited.blocks(list_files(path), form):
        bad: list = []
        chunk = block(bad)
        bad_rows.add(bad)
        rows = zip(*(column.to_pylist() for column in chunk.table.columns), strict=True)
        found += [(chunk.line_of(row), fields) for row, fields in enumerate(rows)]
    return found, bad_rows


def fields(found):
    return [values for _, values in found]


def spec(**csv_form):
    values = {"name": "s", "label": {"column": "y"}, "dense": [{"name": "x"}], "sparse": [{"name": "c", "dim": 2}]}
    return FeatureSpec.from_dict(values | {"csv": csv_form})


def run(tmp_path, text, spec, output="out", **options):
    (tmp_path / "a.csv").write_text(text)
    return convert("csv", tmp_path / "a.csv", tmp_path / output, spec, progress=False, **options)["parts"]["all"]


@pytest.mark.parametrize("closing", [True, False])
def test_a_stray_quote_costs_its_own_row_and_no_other(tmp_path, closing):
    rows = [f"{i},x{i}" for i in range(30_000)]
    rows[10] = '10,"x10'
    if closing:
        rows[29_000] = '29000,"x29000'
    text = "\n".join(rows) + "\n"
    with pytest.raises(UserError, match=r"a.csv, line 11, column 'b': '10,\"x10' is not .*quote = \"\".*lines_per_row"):
        read(tmp_path, text)
    found, bad_rows = read(tmp_path, text, budget=2)
    assert (len(found), bad_rows.count) == (30_000 - 1 - closing, 1 + closing)
    assert found[10] == (12, (b"11", b"x11"))
    found, bad_rows = read(tmp_path, text, CsvFormat(header=False, columns=("a", "b"), quote=""))
    assert (len(found), found[10]) == (30_000, (11, (b"10", b'"x10')))


@pytest.mark.parametrize("block", [1, 2, 5, 11, 10_000])
def test_what_is_a_row_does_not_depend_on_where_blocks_end(tmp_path, monkeypatch, block):
    text = 'a,b\n1,"x\ny"\n\n2,"z\n\n""q"\n"3\n4,"w\r\nv"\n6,7\n"8\n9,\n10,11\n12,"13'
    monkeypatch.setattr("ctr_trainer.data.conversion.text_blocks.BLOCK", max(block, 8))
    found, bad_rows = read(tmp_path, text, CsvFormat(lines_per_row=3), budget=20)
    lines = {2: (b"1", b"x\ny"), 5: (b"2", b'z\n\n"q'), 9: (b"4", b"w\r\nv"), 11: (b"6", b"7")}
    assert dict(found) == lines | {13: (b"9", None), 14: (b"10", b"11")}
    assert bad_rows.count == 3  # lines 8, 12 and 15: their quotes are not closed, or in rows of other lengths


@pytest.mark.parametrize("seed", range(3))
def test_any_text_is_taken_apart_as_the_csv_module_does_it(tmp_path, monkeypatch, seed):
    chance = random.Random(seed)
    for _ in range(40):
        text = "".join(chance.choices('ab,"\n\r\0', [4, 4, 6, 3, 6, chance.random(), chance.random() / 4], k=120))
        text = "1,2\n" + text
        monkeypatch.setattr("ctr_trainer.data.conversion.text_blocks.BLOCK", chance.choice([150, 1000]))
        found, bad_rows = read(tmp_path, text, budget=1000)
        lines = [line.removesuffix("\r") for line in re.sub(r"\n$", "", text).split("\n")]
        assert len(found) + bad_rows.count + sum(not line for line in lines) == len(lines), text
        for line, values in found:
            (expected,) = csv.reader([lines[line - 1]])
            assert [(value or b"").decode() for value in values] == expected, text


def test_a_row_that_is_ragged_and_not_utf8_is_one_bad_row(tmp_path):
    found, bad_rows = read(tmp_path, b"1,2\n3,\xff,4\n5,\xff\n", budget=1)
    assert fields(found) == [(b"1", b"2"), (b"5", b"\xff")] and bad_rows.count == 1
    with pytest.raises(UserError, match=r"line 2: '3,\\\\xff,4' is not a row of 2 fields \(it has 3\)"):
        read(tmp_path, b"1,2\n3,\xff,4\n5,\xff\n")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("header", [True, False])
def test_any_line_end_and_none_at_the_end_will_do(tmp_path, monkeypatch, end, last, mark, header):
    monkeypatch.setattr("ctr_trainer.data.conversion.text_blocks.BLOCK", 9)
    text = mark + end.join(["a,b", "1,2", "", "3,4"]).encode() + end.encode() * last
    form = CsvFormat(header=header, columns=() if header else ("c", "d"))
    found, _ = read(tmp_path, text, form)
    assert found == [(1, (b"a", b"b"))] * (not header) + [(2, (b"1", b"2")), (4, (b"3", b"4"))]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"1,2\n3,\x004\n", "line 2, column 'b': .* is not text: it contains a zero byte"),
        (b"1,2\n3,4\r5\n", "line 2, column 'b': .* is not a row without carriage returns inside"),
        (b"1,2\n" + b"x" * 100, "line 2: it is longer than 50 bytes"),
        (b"1,2\r3,4\r", "line 1: a carriage return is not at its end.*with `tr"),
        (b"", "it is empty"),
        (b"\xef\xbb\xbf", "it is empty"),
        ("1,2\n".encode("utf-16"), "UTF-16: convert it"),
        (gzip.compress(b"1,2\n", mtime=0), "compressed by gzip: rename it to end in .gz"),
        (b"PAR1abc", "it is not text, but Parquet"),
    ],
)
def test_what_is_no_text_of_rows_is_named(tmp_path, monkeypatch, text, message):
    monkeypatch.setattr("ctr_trainer.data.conversion.text_blocks.BLOCK", 20)
    monkeypatch.setattr("ctr_trainer.data.conversion.text_blocks.LONGEST_LINE", 50)
    with pytest.raises(UserError, match=f"a.csv.*{message}"):
        read(tmp_path, text)


def test_a_row_may_be_longer_than_a_block(tmp_path, monkeypatch):
    monkeypatch.setattr("ctr_trainer.data.conversion.text_blocks.BLOCK", 20)
    values = [bytes([97 + number]) * 75 * 3**number for number in range(3)]
    found, _ = read(tmp_path, b"".join(b"1," + value + b"\n" for value in values))
    assert found == [(line, (b"1", value)) for line, value in enumerate(values, 1)]


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_compressed_file_that_is_cut_or_followed_by_other_bytes_is_refused(tmp_path, ending):
    whole = COMPRESS[ending]("".join(f"{i},{i * i}\n" for i in range(20_000)).encode())
    assert len(read(tmp_path, whole + whole, name=f"a.csv{ending}")[0]) == 40_000
    for damaged in (whole[: len(whole) // 2], whole[:-1], whole + whole[:5], whole + b"and more"):
        with pytest.raises(UserError, match=f"a.csv{ending}: cannot be read.*must be written again"):
            read(tmp_path, damaged, name=f"a.csv{ending}")


@pytest.mark.parametrize(
    ("text", "form", "message"),
    [
        (
            "y,x,c\n1,2,a\n",
            dict(header=False, columns=["y", "x", "c"]),
            "line 1: this line names the columns.*`header = true`",
        ),
        (
            "Y,X,C\n1,2,a\n",
            dict(header=False, columns=["y", "x", "c"]),
            "line 1, .*if line 1 is a header, set `header =",
        ),
        ("1,2,a\n0,3,b\n", dict(columns=["y", "x", "c"]), "line 1: this line is a row.*Set `header = false`"),
        ("x,y,c\n1,1,a\n", dict(columns=["y", "x", "c"]), "a.csv, line 1: .*in another order: 'x', 'y', 'c'"),
        ("1,2,a\n0,3,b\n", {}, "no column 'y'.*if its first line is a row, set `header = false` and `columns`"),
        ("y\tx\tc\n1\t2\ta\n", {}, r"no column 'y'.*`delimiter` in \[csv\] is ','; '\\t' would make 3 columns"),
        ("1;2;a\n", dict(header=False, columns=["y", "x", "c"]), r"a row of 3 fields \(it has 1\).*';' would make 3"),
        ("y,x,c,x\n1,2,a,3\n", {}, "2 columns are named 'x', the column of feature 'x'; rename one"),
        ('y,x,"c\n1,2,a\n', {}, 'line 1: cannot be split into fields.*`quote = ""`'),
    ],
)
def test_a_setting_that_does_not_fit_is_named_where_it_is_the_cure(tmp_path, text, form, message):
    with pytest.raises(UserError, match=message):
        run(tmp_path, text, spec(**form))


def test_columns_without_names_and_unwanted_double_ones_are_no_rows(tmp_path):
    assert run(tmp_path, "0,1,2\n1,2,a\n", spec(columns=["y", "x", "c"])).rows == 1
    assert run(tmp_path, "y,x,c,d,d,,\n1,2,a,3,4,,\n", spec(), output="other").rows == 1


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (dict(delimiter="ü"), "delimiter 'ü' is not one character of ASCII"),
        (dict(quote="''"), "quote \"''\" is not one character"),
        (dict(quote=","), "delimiter and quote are both ','"),
        (dict(lines_per_row=0), "lines_per_row 0: expected at least 1"),
        (dict(quote="", lines_per_row=2), "lines_per_row 2: .* 1 without a quote character"),
        (dict(columns=["a", "a"]), "'columns' contains 'a' 2 times"),
    ],
)
def test_a_form_that_makes_no_sense_is_refused(form, message):
    with pytest.raises(UserError, match=message):
        spec(**form)
