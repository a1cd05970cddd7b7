"""Which checkpoint is gone on from where files were damaged, and that none takes another's files along."""

import os
import pathlib

import numpy as np
import pytest

from ctr_trainer.checkpoint import checkpoint as checkpoints
from ctr_trainer.checkpoint import retention
from ctr_trainer.embedding.snapshot import snapshot
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.messages.errors import UserError

CONFIG = TableConfig("t", (2,), (0.1,), "sgd")


class Job:
    """Saves a store that grows by one row a step."""

    def __init__(self, model_dir, full_every=3):
        self.model_dir, self.store, self.before, self._full_every = str(model_dir), LocalStore(), None, full_every
        self.store.create_table(CONFIG)

    def save(self, step):
        self.store.sync("t", np.array([step]), np.ones((1, 2), np.float32), "w", step)
        path = checkpoints.checkpoint_path(self.model_dir, step)
        checkpoints.begin(path)
        base = retention.base_of_next(self.model_dir, self.before, self._full_every)
        files = self.store.save(path, step, base.snapshot if base else None)
        tables = retention.extend(path, files, base)
        with path_of(path).filled_locally() as directory:
            pathlib.Path(directory, "dense.data").write_bytes(b"weights of %d" % step)
        self.before = checkpoints.commit(checkpoints.Checkpoint(path, step, tables, [], None, step))
        return self.before


def _damage(path, name, how):
    """In place, so that it is damaged for each checkpoint that has this file."""
    file = pathlib.Path(path, name)
    data = file.read_bytes()
    if how == "missing":
        file.unlink()
    elif how == "truncated":
        os.truncate(file, len(data) - 2)  # A manifest ends with a line break, which may go.
    else:
        with open(file, "r+b") as stream:
            stream.seek(len(data) // 2)
            stream.write(bytes([data[len(data) // 2] ^ 1]))


def keys_of(checkpoint):
    blocks = snapshot.iterate(checkpoint.path, checkpoint.tables)
    return sorted(key for _, keys, _ in blocks for key in keys.tolist())


def test_every_third_checkpoint_is_full_and_each_has_all_of_its_chain(tmp_path):
    job = Job(tmp_path)
    saved = [job.save(step) for step in range(1, 9)]
    assert [checkpoint.chain_length for checkpoint in saved] == [1, 1, 2, 3, 1, 2, 3, 1]
    for checkpoint in saved:
        assert keys_of(checkpoint) == list(range(1, checkpoint.step + 1))
        checkpoint.verify()
    base = saved[1].tables[0]["file"]
    assert os.path.samefile(os.path.join(saved[1].path, base), os.path.join(saved[3].path, base))


@pytest.mark.parametrize("keep", [1, 2])
def test_the_newest_checkpoints_stay_and_one_whole_chain_before_theirs(tmp_path, keep):
    job = Job(tmp_path, full_every=4)
    chains = [[1], [2, 3, 4, 5], [6, 7, 8, 9], [10, 11]]
    for step in range(1, 12):
        job.save(step)
        before = os.listdir(tmp_path / "checkpoints")
        retention.remove_old(tmp_path, keep=0)  # Keeps all.
        assert os.listdir(tmp_path / "checkpoints") == before
        retention.remove_old(tmp_path, keep=keep)
        found = checkpoints.list_checkpoints(tmp_path)
        own = next(index for index, chain in enumerate(chains) if step in chain)
        newest = list(range(max(step - keep + 1, 1), step + 1))
        before = chains[own - 1][-1:] if own else []
        assert [each.step for each in found] == sorted({*newest, *before})
        for each in found:
            assert keys_of(each) == list(range(1, each.step + 1))


@pytest.mark.parametrize("keep", [1, 3])
def test_no_single_altered_file_damages_all_checkpoints_or_the_best_one(tmp_path, caplog, keep):
    """Flips one bit of each file of the newest checkpoint in turn."""
    for number in range(100):
        model_dir = str(tmp_path / str(number))
        job = Job(model_dir, full_every=4)
        for step in range(1, 5):
            newest = job.save(step)
            retention.remove_old(model_dir, keep=keep)
            if step in (3, 4):
                retention.keep_best(model_dir, newest.path)
                retention.remove_other_bests(model_dir, step)
        names, base = sorted(os.listdir(newest.path)), newest.tables[0]["file"]
        if number == len(names):
            break
        caplog.clear()
        _damage(newest.path, names[number], "altered")
        found = checkpoints.newest_whole(model_dir)
        first_with_it = {base: 2, "t-00000-of-00001.0000000003.delta.arrow": 3}.get(names[number], 4)
        assert found.step == (1 if keep == 1 else first_with_it - 1)
        assert keys_of(found) == list(range(1, found.step + 1))
        assert f"REFUSED the checkpoint {newest.path}" in caplog.text
        assert names[number] in caplog.text
        assert f"resuming from the previous checkpoint: {found.path}" in caplog.text
        best = checkpoints.whole(model_dir, 4, (checkpoints.BEST, checkpoints.RECENT))
        assert keys_of(best) == [1, 2, 3, 4]
        # And the other way round: a damaged copy is not the end of the best one.
        _damage(best.path, names[number], "altered")
        with pytest.raises(UserError, match=names[number]):
            checkpoints.whole(model_dir, 4)
    assert number > 3


def test_the_best_one_of_the_same_chain_is_copied_as_far_as_it_is_new(tmp_path):
    job = Job(tmp_path, full_every=5)
    saved = [job.save(step) for step in (1, 2, 3)]
    kept = []
    for each in saved[1:]:
        retention.keep_best(str(tmp_path), each.path)
        kept.append(tmp_path / "best" / os.path.basename(each.path))
    base = saved[1].tables[0]["file"]
    assert os.path.samefile(kept[0] / base, kept[1] / base)
    assert not os.path.samefile(kept[1] / base, os.path.join(saved[1].path, base))
    _damage(kept[1], base, "altered")
    retention.keep_best(str(tmp_path), job.save(4).path)  # From the checkpoint then, not from what is damaged.
    checkpoints.whole(str(tmp_path), 4, (checkpoints.BEST,))


def test_a_chain_is_not_made_longer_while_no_other_is_whole(tmp_path):
    job = Job(tmp_path, full_every=10)
    for step in (1, 2, 3):
        job.save(step)
    _damage(job.before.path, job.before.tables[0]["file"], "altered")
    job.before = checkpoints.newest_whole(tmp_path)
    assert job.before.step == 1
    retention.set_aside(str(tmp_path), 1, "refused")
    assert job.save(4).chain_length == 1


def test_what_goes_on_from_the_best_one_takes_none_of_its_files(tmp_path):
    job = Job(tmp_path, full_every=10)
    for step in (1, 2):
        path = job.save(step).path
    retention.keep_best(str(tmp_path), path)
    job.before = checkpoints.whole(str(tmp_path), 2, (checkpoints.BEST,))
    assert job.save(3).chain_length == 1


@pytest.mark.parametrize("how", ["truncated", "missing"])
@pytest.mark.parametrize(
    "name", ["dense.data", "t-00000-of-00001.arrow", "t-00000-of-00001.0000000003.delta.arrow", "manifest.json"]
)
def test_a_damaged_file_is_named_and_the_previous_checkpoint_is_taken(tmp_path, caplog, name, how):
    job = Job(tmp_path)
    first, second, third = (job.save(step) for step in (1, 2, 3))
    _damage(third.path, name, how)
    # What is missing is so in one directory only.
    before = first if name == "t-00000-of-00001.arrow" and how != "missing" else second
    assert checkpoints.newest_whole(tmp_path) == before
    if (name, how) != ("manifest.json", "missing"):  # Then it was never finished.
        assert f"REFUSED the checkpoint {third.path}" in caplog.text
        assert name in caplog.text
        assert f"resuming from the previous checkpoint: {before.path}, of step {before.step}" in caplog.text


def test_without_a_whole_checkpoint_training_does_not_start_from_nothing(tmp_path):
    saved = Job(tmp_path).save(1)
    _damage(saved.path, "dense.data", "altered")
    with pytest.raises(
        UserError, match=r"(?s)no checkpoint in .* is valid.*dense\.data is missing, truncated or altered"
    ):
        checkpoints.newest_whole(tmp_path)
    assert checkpoints.newest_whole(tmp_path / "other") is None


def test_refused_checkpoints_are_set_aside_so_that_whole_ones_are_kept(tmp_path):
    job = Job(tmp_path)
    for step in (10, 20, 30):
        job.save(step)
    retention.set_aside(tmp_path, after=10, why="refused")
    assert sorted(os.listdir(tmp_path / "checkpoints")) == [
        "refused-step-0000000020",
        "refused-step-0000000030",
        "step-0000000010",
    ]
    retention.remove_old(tmp_path, keep=1)
    assert checkpoints.newest_whole(tmp_path).step == 10


def test_a_chain_is_copied_where_there_are_no_hard_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    job = Job(tmp_path)
    for step in (1, 2, 3):
        last = job.save(step)
    last.verify()
    assert (last.chain_length, keys_of(last)) == (2, [1, 2, 3])
