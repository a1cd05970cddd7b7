"""Rows that begin with the vectors of a file, trained or frozen."""

import contextlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_trainer.checkpoint.model_directory import load_features
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.embedding.service.local_service import LocalService
from ctr_trainer.features.hashing import keys
from ctr_trainer.settings.embedding_config import EmbeddingConfig, SecurityFiles
from ctr_trainer.settings.setting import SettingError
from ctr_trainer.system.messages.errors import UserError
from tests import small
from tests.checkpoints import rows_by_key
from tests.estimator import deepfm
from tests.row_optimizers import row_optimizer
from tests.small import ITEMS, NEVER, VECTORS, make_pretrained


def _train(path, data, steps, **embedding):
    estimator = deepfm.estimator(path, embedding=EmbeddingConfig(**embedding))
    estimator.train(lambda position: BatchReader(data, 32, position=position), max_steps=steps)
    return rows_by_key(estimator.latest_checkpoint())


def _of(rows, names):
    return np.stack([rows[key] for key in keys("item", pa.array(names)).tolist()])


@pytest.mark.parametrize("has_service", [False, pytest.param(True, marks=pytest.mark.integration)])
def test_frozen_rows_stay_what_they_are_while_others_train(tmp_path, has_service):
    data, model = make_pretrained(tmp_path, 320, "trained = false\n"), tmp_path / "model"
    (tmp_path / "vectors.parquet").unlink()
    settings = {"l2": 0.01, "clip_norm": 1.0, "sync_steps": 3} if has_service else {"l2": 0.01, "clip_norm": 1.0}
    model.mkdir()
    for steps in (10, 20):  # The second training resumes.
        with contextlib.ExitStack() as stack:
            if has_service:
                service = stack.enter_context(LocalService(str(model), str(model / "service.log"), 60))
                (tmp_path / "token").write_text(service.token)
                settings |= {"service": service.address, "security": SecurityFiles(str(tmp_path / "token"))}
            rows = _train(model, data, steps, **settings)
        np.testing.assert_array_equal(_of(rows, ITEMS + NEVER)[:, :4], VECTORS)
        assert (_of(rows, ITEMS)[:, 4] != 0).all() and (_of(rows, NEVER)[:, 4] == 0).all()  # The linear weights.
    others = _of(rows, [f"i{number}" for number in range(30, 60)])[:, :4]
    assert np.abs(others).max() > 0.1  # They began with a standard deviation of 0.01.
    assert load_features(str(model))[0].pretrained[0].read()


@pytest.mark.parametrize("optimizer", ["adamw", "ftrl"])  # Each moves a row without a gradient.
def test_frozen_rows_stay_with_decay_and_penalties(tmp_path, optimizer):
    data = make_pretrained(tmp_path, 320, "trained = false\n")
    chosen = row_optimizer(optimizer, weight_decay=0.5, l1=0.01, l2=0.01, initial_accumulator=0.1)
    rows = _train(tmp_path / "model", data, 10, optimizer=chosen)
    np.testing.assert_array_equal(_of(rows, ITEMS + NEVER)[:, :4], VECTORS)
    assert (_of(rows, ITEMS)[:, 4] != 0).any()


def test_trained_rows_begin_with_the_vectors(tmp_path):
    data = make_pretrained(tmp_path, 320)
    before, after = (_train(tmp_path / f"model{steps}", data, steps) for steps in (1, 20))
    first, last = (_of(rows, ITEMS + NEVER)[:, :4] for rows in (before, after))
    is_same = (first == VECTORS).all(1)
    assert is_same[-2:].all() and 0 < is_same[:-2].sum() < 30
    assert np.abs(first - VECTORS).max() < 0.5 and (last[:-2] != VECTORS[:-2]).any(1).all()
    np.testing.assert_array_equal(last[-2:], VECTORS[-2:])


def test_vectors_of_another_length_and_rows_that_cannot_stay_are_refused(tmp_path):
    data = make_pretrained(tmp_path, 320, vectors=VECTORS[:, :3])
    with pytest.raises(UserError, match=r"the file of \[\[pretrained\]\] 'item': row 1, .* is not a list of 4 finite"):
        _train(tmp_path / "model", data, 1)
    data = make_pretrained(tmp_path / "frozen", 320, "trained = false\n")
    with pytest.raises(SettingError, match="trained = false keeps rows as they are, and optimizer=dense_adam"):
        _train(tmp_path / "frozen" / "model", data, 1, optimizer="dense_adam")
    pq.write_table(pa.table({"key": [1], "row": [[0.0] * 5]}), tmp_path / "dim4.parquet")
    with pytest.raises(UserError, match=r"warm_start=.* and \[\[pretrained\]\] both give the first rows"):
        deepfm.estimator(tmp_path / "warm", warm_start=str(tmp_path)).train(lambda: BatchReader(data, 32), max_steps=1)
    text = small.SPEC + small.PRETRAINED
    (tmp_path / "spec.toml").write_text(text.replace('"item"\nfile', '"price"\nfile'))
    with pytest.raises(UserError, match=r"\[\[pretrained\]\] price: expected the names of \[\[sparse\]\] features"):
        small.FeatureSpec.load(tmp_path / "spec.toml")
