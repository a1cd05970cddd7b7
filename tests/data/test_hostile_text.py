"""Texts from data do not reach a terminal as they are: control characters are escaped, and long texts are cut."""

import logging
import os

import pytest

from ctr_trainer import cli
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.messages.errors import masked
from tests.data.make import write

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"
SPEC = 'name = "s"\n[label]\ncolumn = "y"\n[[sparse]]\ncolumns = ["city", "x"]\ndim = 4\n'


def errors_of(capsys):
    said = capsys.readouterr()
    assert not any(c in said.out + said.err for c in ESCAPE if not c.isprintable()), repr(said)
    return said.out + said.err


def test_a_header_is_shown_escaped_and_cut(tmp_path, capsys):
    (tmp_path / "s.toml").write_text(SPEC)
    names = ["y", f"cit{ESCAPE}y", "z" * 10_000, *(f"n{i}" for i in range(2000))]
    source = write(tmp_path / "a.csv", ",".join(names) + "\n" + ",".join(["1"] * len(names)) + "\n")
    files = [f"--input={source}", f"--feature_spec={tmp_path / 's.toml'}", f"--output={tmp_path / 'out'}"]
    assert cli.main(["convert", "--format=csv", *files]) == 1
    said = errors_of(capsys)
    assert r"cit\x1b]0;owned\x07\x1b[2J\x9b31m\u202ey" in said and "(2,003 in all)" in said and len(said) < 4000
    assert cli.main(["convert", "--infer", f"--input={source}", f"--output={tmp_path / 'i.toml'}", "--label=x"]) == 1
    assert len(errors_of(capsys)) < 4000


def test_an_inferred_spec_of_a_hostile_header_names_its_features_in_plain_text(tmp_path, capsys):
    lines = "".join(f"{i % 2},{i // 2 % 3},{i // 2 % 5}\n" for i in range(60))
    source = write(tmp_path / "a.csv", f"y,{ESCAPE}a,{ESCAPE}b\n{lines}")
    spec, data = tmp_path / "s.toml", [f"--input={source}", "--format=csv"]
    assert cli.main(["convert", "--infer", *data, f"--output={spec}"]) == 0
    assert cli.main(["convert", *data, f"--feature_spec={spec}", f"--output={tmp_path / 'out'}"]) == 0
    errors_of(capsys)
    features = FeatureSpec.load(spec).sparse
    assert all(f.name.isprintable() for f in features) and {f.column for f in features} == {f"{ESCAPE}a", f"{ESCAPE}b"}


def test_a_value_is_shown_escaped_and_cut(tmp_path, capsys, caplog):
    (tmp_path / "s.toml").write_text(SPEC)
    source = write(tmp_path / "a.csv", f"y,city,x\n{ESCAPE}{'9' * 10_000},Bern,1\n1,Bern,2\n")
    files = [f"--input={source}", f"--feature_spec={tmp_path / 's.toml'}", f"--output={tmp_path / 'out'}"]
    assert cli.main(["convert", "--format=csv", *files]) == 1
    said = errors_of(capsys)
    assert "characters) is not a label of 0 or 1" in said and len(said) < 1000
    with caplog.at_level(logging.WARNING):
        assert cli.main(["convert", "--format=csv", *files, "--max_bad_rows=1"]) == 0
    assert max(map(len, caplog.messages)) < 1000


def test_a_text_for_a_terminal_keeps_its_lines_and_letters():
    assert masked("a\tb\nZürich 東京 \x1b\r\x00\udcff") == "a\tb\nZürich 東京 \\x1b\\r\\x00\\udcff"


@pytest.mark.parametrize(
    ("what", "format"),
    [("input", "csv"), ("input", "parquet"), ("input", "tfrecord"), ("output", "csv"), ("directory", "csv")],
)
def test_links_that_form_a_loop_are_named_in_a_sentence(tmp_path, capsys, what, format):
    (tmp_path / "s.toml").write_text(SPEC)
    os.symlink("b", tmp_path / "a")
    os.symlink("a", tmp_path / "b")
    source = tmp_path / "a" / "*" if what == "directory" else tmp_path / "a"
    source = write(tmp_path / "c", "y,city,x\n1,a,b\n") if what == "output" else source
    output = tmp_path / "a" / "out" if what == "output" else tmp_path / "out"
    files = [f"--input={source}", f"--feature_spec={tmp_path / 's.toml'}", f"--output={output}"]
    assert cli.main(["convert", f"--format={format}", *files]) == 1
    (said,) = errors_of(capsys).splitlines()
    assert said.startswith("error: ") and str(tmp_path / "a") in said and "Traceback" not in said
