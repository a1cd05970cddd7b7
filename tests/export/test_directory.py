"""What an export may replace."""

import os
import pathlib
import shutil

import pytest

from ctr_trainer.estimator.exporters import LatestExporter
from ctr_trainer.serving.export import directory
from ctr_trainer.system.files.outputs import InUse
from ctr_trainer.system.messages.errors import UserError


def export(path, text):
    """Writes as `export_saved_model` does."""
    with directory.replacing(str(path)) as draft:
        for name in ("saved_model.pb", "variables/variables.index"):
            file = pathlib.Path(draft, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)


def test_an_earlier_export_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    (tmp_path / "1").mkdir()  # empty
    for text in ("first", "second"):
        export(tmp_path / "1", text)
        assert (tmp_path / "1" / "variables" / "variables.index").read_text() == text
        assert os.listdir(tmp_path) == ["1"]


def test_what_was_added_to_an_export_keeps_it_from_being_replaced(tmp_path):
    export(tmp_path / "1", "first")
    warmup = tmp_path / "1" / "assets.extra" / "tf_serving_warmup_requests"
    warmup.write_text("mine")
    with pytest.raises(UserError, match="1 holds files that `export` did not write .assets.extra/tf_serving_warmup"):
        export(tmp_path / "1", "second")
    assert warmup.read_text() == "mine" and (tmp_path / "1" / "saved_model.pb").read_text() == "first"


def test_a_saved_model_of_others_and_the_directory_of_the_versions_are_never_replaced(tmp_path):
    (tmp_path / "keras").mkdir()
    (tmp_path / "keras" / "saved_model.pb").write_text("of Keras")
    with pytest.raises(UserError, match="keras holds files that `export` did not write .saved_model.pb."):
        export(tmp_path / "keras", "new")
    for version in ("1", "9"):
        export(tmp_path / "ctr" / version, "first")
    with pytest.raises(UserError, match="name a version that does not exist yet: export_dir=.*/ctr/10$"):
        export(tmp_path / "ctr", "new")
    (tmp_path / "link").symlink_to(tmp_path / "ctr" / "1")
    (tmp_path / "file.tmp").write_text("mine")
    for path in ("link", "file.tmp"):
        with pytest.raises(UserError, match=f"{path} is not a directory"):
            export(tmp_path / path, "new")
    export(tmp_path / "file", "first")  # its draft was named file.tmp once, and the file of that name removed
    assert (tmp_path / "file.tmp").read_text() == "mine"


def test_an_export_that_fails_or_is_killed_leaves_the_one_before_and_the_next_one_cleans_up(tmp_path):
    export(tmp_path / "1", "first")
    with pytest.raises(ZeroDivisionError), directory.replacing(str(tmp_path / "1")) as draft:
        pathlib.Path(draft).mkdir()
        pathlib.Path(draft, "saved_model.pb").write_text("half")
        with pytest.raises(InUse, match="writes this export now"):
            export(tmp_path / "1", "other")
        raise ZeroDivisionError
    assert (tmp_path / "1" / "saved_model.pb").read_text() == "first"
    # Killed when the earlier one had been moved aside, and again when the new one was in its place.
    place = tmp_path / ".1.unfinished"
    shutil.copytree(tmp_path / "1", place / "replaced")
    export(tmp_path / "1", "second")
    assert (tmp_path / "1" / "saved_model.pb").read_text() == "second" and os.listdir(tmp_path) == ["1"]


def test_the_latest_exporter_removes_old_exports_only_and_never_what_others_wrote(tmp_path, caplog):
    class Estimator:
        def export_saved_model(self, parent, receive, checkpoint_path, assets_extra):
            path = os.path.join(parent, checkpoint_path)
            export(path, checkpoint_path)
            return path

    (tmp_path / "20261101").mkdir()
    (tmp_path / "20261101" / "notes.txt").write_text("mine")
    exporter = LatestExporter("latest", exports_to_keep=1)
    for step in ("10", "20", "30"):
        exporter.export(Estimator(), str(tmp_path), step, {"global_step": int(step)}, False)
        if step == "20":
            assert sorted(os.listdir(tmp_path)) == ["20", "20261101"]
            (tmp_path / "20" / "notes.txt").write_text("mine")
    assert sorted(os.listdir(tmp_path)) == ["20", "20261101", "30"]
    assert os.listdir(tmp_path / "20") == os.listdir(tmp_path / "20261101") == ["notes.txt"]
    assert "20, but kept the files that were added to it" in caplog.text
