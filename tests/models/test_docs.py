import dataclasses
import pathlib
import re

from ctr_trainer import cli
from ctr_trainer.models.params import SHARED
from ctr_trainer.models.registry import MODELS, find_model
from tests import small
from tests.models import tasks

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "models.md").read_text()


def test_the_page_has_each_model_with_its_params():
    page = PAGE[: PAGE.index("<!-- benchmarks/quality_zoo.py writes the next table")]
    rows = {match.group(1): match.group(0) for match in re.finditer(r"^\| `(\w+)` \|.*$", page, re.MULTILINE)}
    others = {model for _, model, _ in tasks.CASES.values()}
    assert list(rows) == [name for name in MODELS if name not in others]
    for name, row in rows.items():
        for field in (each.name for each in dataclasses.fields(find_model(name).params_class)):
            assert field in SHARED or f"`{field}` (" in row or f"`{field}`," in row, (name, field)


def test_the_pages_own_model_trains(tmp_path, monkeypatch):
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "crossed.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    data = small.make(tmp_path, rows=50)
    flags = ["--model=crossed:model_fn", "--model_params=layers=1", "--threads=1", "--batch_size=16"]
    assert cli.main(["train", f"--train_data={data}", f"--model_dir={tmp_path / 'model'}", *flags]) == 0
