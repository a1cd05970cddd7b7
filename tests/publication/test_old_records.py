"""What is removed of a publication's directory."""

from ctr_trainer.serving.publication import records


def test_only_directories_of_generations_are_counted_and_removed(tmp_path):
    names = ["generation-0000000001", "generation-0000000003", "generation-2", "generation-old", "mine"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    assert records.newest_generation(tmp_path) == 3
    records.remove_generations_before(tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])
