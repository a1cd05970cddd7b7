"""Text that is not UTF-8 is a bad row in every format, unless a CSV's encoding is named."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_trainer import cli
from ctr_trainer.features.hashing import keys
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.messages.errors import UserError
from tests.data import test_tfrecord
from tests.data.make import read, run, write

SPEC = {
    "name": "s",
    "label": {"column": "y"},
    "sparse": [{"name": "c", "dim": 4}, {"name": "tags", "dim": 4, "combiner": "sum"}],
}
GOOD, BAD = "Zürich".encode(), "Zürich".encode("latin-1")


def write_rows(directory, kind, cities, tags):
    """A file of the rows with label 0; each has a city and a list of tags, as bytes."""
    if kind == "csv":
        lines = [b"0,%s,%s\n" % (city, b"|".join(each)) for city, each in zip(cities, tags, strict=True)]
        return "csv", write(directory / "a.csv", b"y,c,tags\n" + b"".join(lines))
    if kind == "tfrecord":
        rows = zip(cities, tags, strict=True)
        records = [test_tfrecord.example(y=("int64", [0]), c=("bytes", [c]), tags=("bytes", t)) for c, t in rows]
        return "tfrecord", test_tfrecord.write(directory / "a.tfrecord", records)
    table = pa.table({"y": [0] * len(cities), "c": pa.array(cities, pa.binary()), "tags": tags})
    if kind == "parquet with invalid strings":
        data = pa.StringArray.from_buffers(len(cities), *table["c"].chunk(0).buffers()[1:])
        table = table.set_column(1, "c", data.dictionary_encode())
    pq.write_table(table, directory / "a.parquet")
    return "parquet", directory / "a.parquet"


@pytest.mark.parametrize("column", ["c", "tags"])
@pytest.mark.parametrize("kind", ["csv", "tfrecord", "parquet", "parquet with invalid strings"])
def test_a_text_that_is_not_utf8_is_a_bad_row_that_names_the_byte(tmp_path, caplog, kind, column):
    wrong = BAD if column == "c" else GOOD
    tags = [[b"a", GOOD], [b"a", BAD if column == "tags" else b"b"], []]
    format, source = write_rows(tmp_path, kind, [GOOD, wrong, b"Bern"], tags)
    spec = FeatureSpec.from_dict(SPEC)
    line = "line 3" if kind == "csv" else "row 2"
    with pytest.raises(
        UserError, match=rf"a\.\w+, {line}, column '{column}': .*is not UTF-8 text, .* byte 0xfc is not"
    ):
        run(format, source, tmp_path / "none", spec)
    assert run(format, source, tmp_path / "out", spec, max_bad_rows=1)["bad_rows"] == 1
    table = read(tmp_path / "out")
    assert table["c"].to_pylist() == keys("c", pa.array(["Zürich", "Bern"])).tolist()
    assert table["tags"].to_pylist() == [keys("tags", pa.array(["a", "Zürich"])).tolist(), []]


@pytest.mark.parametrize(("encoding", "text"), [("latin-1", "Zürich,é"), ("shift_jis", "東京,ソ")])
def test_a_csv_in_a_named_encoding_has_the_keys_of_utf8(tmp_path, capsys, encoding, text):
    lines = (
        "y,c,größe\n".replace("größe", "größe" if encoding != "shift_jis" else "大")
        + f"0,{text}\n1,{text}\n0,a,b\n1,a,b\n" * 1500
    )
    name = lines.splitlines()[0].split(",")[2]
    spec = tmp_path / "s.toml"
    spec.write_text(
        f'name = "s"\n[label]\ncolumn = "y"\n[[sparse]]\ncolumns = ["c", "{name}"]\ndim = 4\n', encoding="utf-8"
    )
    for made, given in (("utf-8", []), (encoding, [f"--encoding={encoding}"])):
        (tmp_path / f"{made}.csv").write_bytes(lines.encode(made))
        files = [f"--input={tmp_path / f'{made}.csv'}", f"--output={tmp_path / made}"]
        assert cli.main(["convert", "--format=csv", f"--feature_spec={spec}", *files, *given]) == 0
    assert read(tmp_path / encoding).equals(read(tmp_path / "utf-8"))
    inferred = [f"--input={tmp_path / f'{encoding}.csv'}", f"--output={tmp_path / 'i.toml'}", "--infer", "--label=y"]
    assert cli.main(["convert", *inferred]) == 1
    assert "cannot be read as the header: the byte 0x" in capsys.readouterr().err
    assert cli.main(["convert", *inferred, f"--encoding={encoding}"]) == 0
    assert FeatureSpec.load(tmp_path / "i.toml").csv.encoding == encoding


def test_a_byte_that_the_named_encoding_lacks_is_a_bad_row(tmp_path):
    source = write(tmp_path / "a.csv", b"y,c,tags\n0,\x80,a\n0,\x81,a\n")
    spec = FeatureSpec.from_dict(SPEC | {"csv": {"encoding": "cp1252"}})
    with pytest.raises(UserError, match="line 3, column 'c'.*the byte 0x81"):
        run("csv", source, tmp_path / "out", spec)


@pytest.mark.parametrize("encoding", ["utf-16", "klingon", "base64"])
def test_an_encoding_without_ascii_or_an_unknown_one_is_refused(encoding):
    with pytest.raises(UserError, match=f"encoding '{encoding}'"):
        FeatureSpec.from_dict(SPEC | {"csv": {"encoding": encoding}})
