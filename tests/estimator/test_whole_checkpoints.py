"""Which checkpoint is gone on from where files were damaged, and that none takes another's files along."""

import os
import pathlib

import numpy as np
import pytest

from ctr_trainer.embedding import snapshot
from ctr_trainer.embedding.config import TableConfig
from ctr_trainer.embedding.local_store import LocalStore
from ctr_trainer.errors import UserError
from ctr_trainer.estimator import checkpoint as checkpoints

CONFIG = TableConfig("t", (2,), (0.1,), "sgd")


class _Job:
    """Saves a store that grows by one row a step."""

    def __init__(self, model_dir, full_every=3):
        self.model_dir, self.store, self.before, self._full_every = model_dir, LocalStore(), None, full_every
        self.store.create_table(CONFIG)

    def save(self, step):
        self.store.push("t", np.array([step]), np.ones((1, 2), np.float32), "w", step)
        path = checkpoints.checkpoint_path(self.model_dir, step)
        checkpoints.begin(path)
        adds = self.before is not None and self.before.chain_length < self._full_every
        files = self.store.save(path, step, self.before.snapshot if adds else None)
        tables = checkpoints.extend(path, files, self.before)
        pathlib.Path(path, "dense.data").write_bytes(b"weights of %d" % step)
        self.before = checkpoints.commit(path, step, tables, position=None, examples=step)
        return self.before


def _damage(path, name, how):
    file = pathlib.Path(path, name)
    data = file.read_bytes()
    file.unlink()  # Not written in place: other checkpoints may hold the same file.
    if how == "truncated":
        file.write_bytes(data[:-1])
    elif how == "altered":
        file.write_bytes(data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :])


def _keys(checkpoint):
    blocks = snapshot.iterate(checkpoint.path, checkpoint.tables)
    return sorted(key for _, keys, _ in blocks for key in keys.tolist())


def test_every_third_checkpoint_is_full_and_each_has_all_of_its_chain(tmp_path):
    job = _Job(tmp_path)
    saved = [job.save(step) for step in range(1, 8)]
    assert [checkpoint.chain_length for checkpoint in saved] == [1, 2, 3, 1, 2, 3, 1]
    for checkpoint in saved:
        assert _keys(checkpoint) == list(range(1, checkpoint.step + 1))
        checkpoint.verify()
    base = saved[0].tables[0]["file"]
    assert os.path.samefile(os.path.join(saved[0].path, base), os.path.join(saved[2].path, base))


def test_removing_old_checkpoints_leaves_the_base_of_those_that_stay(tmp_path):
    job = _Job(tmp_path, full_every=10)
    for step in range(1, 7):
        job.save(step)
        checkpoints.remove_old(tmp_path, keep=2)
    five, six = checkpoints.list_checkpoints(tmp_path)
    assert (_keys(five), _keys(six)) == ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize("how", ["truncated", "altered", "missing"])
@pytest.mark.parametrize(
    "name", ["dense.data", "t-00000-of-00001.arrow", "t-00000-of-00001.0000000002.delta.arrow", "manifest.json"]
)
def test_a_damaged_file_is_refused_by_name_and_the_checkpoint_before_it_is_taken(tmp_path, caplog, name, how):
    job = _Job(tmp_path)
    first, second = job.save(1), job.save(2)
    _damage(second.path, name, how)
    assert checkpoints.newest_whole(tmp_path) == first
    if (name, how) != ("manifest.json", "missing"):  # Then it was never finished.
        assert f"REFUSED the checkpoint {second.path}" in caplog.text
        assert name in caplog.text
        assert f"going on from the checkpoint before it: {first.path}, of step 1" in caplog.text


def test_without_a_whole_checkpoint_training_does_not_start_from_nothing(tmp_path):
    saved = _Job(tmp_path).save(1)
    _damage(saved.path, "dense.data", "altered")
    with pytest.raises(UserError, match=r"(?s)no checkpoint in .* is whole.*dense\.data"):
        checkpoints.newest_whole(tmp_path)
    assert checkpoints.newest_whole(tmp_path / "other") is None


def test_refused_checkpoints_are_set_aside_so_that_whole_ones_are_kept(tmp_path):
    job = _Job(tmp_path)
    for step in (10, 20, 30):
        job.save(step)
    checkpoints.set_aside(tmp_path, after=10)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == [
        "refused-step-0000000020",
        "refused-step-0000000030",
        "step-0000000010",
    ]
    checkpoints.remove_old(tmp_path, keep=1)
    assert checkpoints.newest_whole(tmp_path).step == 10


def test_a_chain_is_copied_where_there_are_no_hard_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    job = _Job(tmp_path)
    job.save(1)
    second = job.save(2)
    second.verify()
    assert _keys(second) == [1, 2]
