"""Two workers on Parquet made elsewhere."""

import json

import pytest

from tests.data import foreign
from tests.parallel import launch

pytestmark = pytest.mark.integration
ROWS = 203


def test_two_workers_train_on_foreign_parquet_and_lose_no_example(tmp_path):
    source = foreign.write_spark(tmp_path / "clicks", ROWS)
    (tmp_path / "spec.toml").write_text(foreign.TOML)
    model = ["--hidden_units=8", f"--model_dir={tmp_path / 'model'}"]
    data = [f"--train_data={source}", f"--feature_spec={tmp_path / 'spec.toml'}", "--batch_size=16", "--recipe=none"]
    launch.run(2, "-m", "ctr_trainer", "train", *model, *data)
    summary = json.loads((tmp_path / "model" / "train_summary.json").read_text())
    assert (summary["workers"], summary["steps"], summary["examples"]) == (2, 7, ROWS)  # ceil(102 / 16) steps
    statistics = json.loads((tmp_path / "model" / "features.json").read_text())["statistics"]
    assert statistics["price"]["count"] == ROWS and statistics["age"]["count"] == ROWS - 51
