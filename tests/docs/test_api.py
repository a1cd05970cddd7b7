"""The examples of the pages about the Python API, run as they stand."""

import pytest

from tests import small
from tests.docs import page

PRINTED = {
    "ctr_trainer": "1000",
    "data": "{'dim4': (32, ",
    "estimator": "",
    "features": "small ['user', 'item', 'place', 'device'",
    "hooks": "",
    "layers": "(4, 8)",
    "metrics": "1.0",
    "models": "hidden_units=(",
    "sparse_optimizers": "adagrad",
}


def test_each_page_has_an_example():
    assert sorted(PRINTED) == sorted(path.stem for path in (page.DOCS / "api").glob("*.md"))


@pytest.mark.parametrize("name", PRINTED)
def test_the_example_prints_what_the_page_says(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if name in ("data", "features"):
        made = small.make(tmp_path, rows=64)
        (tmp_path / "made").mkdir()
        made.rename(tmp_path / "made" / "train")
        (tmp_path / "made").rename(tmp_path / "data")
    (example,) = page.blocks((page.DOCS / "api" / f"{name}.md").read_text(), "python")
    exec(example, {})
    assert PRINTED[name] in capsys.readouterr().out
