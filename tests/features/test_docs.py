"""The documentation's example is run as it stands."""

import pathlib
import re
import shlex

from ctr_trainer import cli
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.features.spec import FeatureSpec

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "features.md"


def test_the_example_converts_and_reads_as_the_page_says(tmp_path, monkeypatch, capsys):
    text = PAGE.read_text()
    for language, name in (("csv", "shop.csv"), ("toml", "shop.toml")):
        (block,) = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        (tmp_path / name).write_text(block)
    (command,) = re.findall(r"^    python (.*)$", text, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    program, *arguments = shlex.split(command)[1:]
    assert program == "ctr_trainer" and cli.main(arguments) == 0
    assert "price_level  2 buckets, cut at 14" in capsys.readouterr().out
    spec = FeatureSpec.load(tmp_path / "shop.toml")
    assert [(label.name, label.weight) for label in spec.labels] == [("clicked", 1.0), ("bought", 0.5)]
    (batch,) = BatchReader(tmp_path / "shop", 4, shuffle=False, epochs=1)
    assert batch.labels.tolist() == [[1, 1], [1, 0], [0, 0], [0, 0]]
    assert batch.bags["topics"].weights.tolist() == [0.5, 2, 1, 1.5, 0.25]
    item = batch.keys["dim8"][:, 1]
    assert batch.bags["history"].values.tolist() == [item[2], item[1], item[0], item[0], item[1], item[2]]
