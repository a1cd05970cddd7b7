"""Programs written for tf.estimator: what a port changes, and that two workers train as one does."""

import json
import pathlib
import pickle
import re

import numpy as np
import pytest

from tests.docs import page
from tests.parallel import launch

AFTER = pathlib.Path(__file__).parent / "after"
PROGRAMS = ("deepfm", "din", "wide_and_deep")
# Lines that TensorFlow's own removals change: its name since version 2, and `tf.layers`.
OF_TENSORFLOW = re.compile(r"^import tensorflow|tf\.layers\.|\bdense\(|import dense$|^$")
TOLERANCE = 1e-4  # Of the loss: sums of floats in another order.


def changed_lines(program: str) -> int:
    """The lines of a program that its port changes, adds or removes, without those of TensorFlow's removals."""
    after, changes = ((AFTER / f"{program}.{ending}").read_text() for ending in ("py", "diff"))
    after, count = after.splitlines(), 0
    for first, lines in re.findall(r"^@@ \S+ \+(\d+)\S* @@\n((?:[+-].*\n)+)", changes, re.MULTILINE):
        removed, added = ([line[1:] for line in lines.splitlines() if line[0] == sign] for sign in "-+")
        assert after[int(first) - 1 :][: len(added)] == added, f"{program}.diff is not of {program}.py"
        ours = [[line for line in each if not OF_TENSORFLOW.search(line)] for each in (removed, added)]
        count += max(map(len, ours))
    return count


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_port_changes_at_most_nine_lines_and_the_page_says_how_many(program):
    count = changed_lines(program)
    assert count <= 9
    assert f"| `{program}.py` | {count} |" in (page.DOCS / "porting.md").read_text()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A directory with the data of all three programs; every number of examples is a multiple of the batch size."""
    path, draw = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for part, rows in (("tr", 1920), ("va", 256), ("te", 64)):
        with open(path / f"{part}.libsvm", "w") as file:
            for _ in range(rows):
                ids = draw.integers(0, 40, 5) + 40 * np.arange(5)
                clicked = draw.random() < 1 / (1 + np.exp(-((ids % 7) - 3).sum() / 4))
                file.write(f"{clicked:d} " + " ".join(f"{each}:{draw.uniform(0.9, 1):.3f}" for each in ids) + "\n")
    shares = []
    for rows in (640, 256):
        items, lengths = draw.integers(0, 60, rows), draw.integers(1, 12, rows)
        histories = [draw.integers(0, 60, length).tolist() for length in lengths]
        likes = [
            float(np.mean(np.array(history) % 3 == item % 3)) for history, item in zip(histories, items, strict=True)
        ]
        labels = [float(draw.random() < 0.1 + 0.8 * like) for like in likes]
        shares.append(list(zip(histories, items.tolist(), labels, strict=True)))
    with open(path / "din.pickle", "wb") as file:
        pickle.dump((*shares, 60, [item % 3 for item in range(60)]), file)
    levels = ["school", "college", "bachelor", "master"]
    for part, rows in (("train", 640), ("test", 256)):
        with open(path / f"{part}.csv", "w") as file:
            for _ in range(rows):
                age, level, ads = draw.uniform(18, 70), draw.integers(0, 4), draw.integers(0, 9, 2)
                clicked = draw.random() < 1 / (1 + np.exp(2 - age / 30 - level / 2 + (ads[0] == ads[1])))
                tags = " ".join(f"t{draw.integers(0, 9)}:{draw.random():.2f}" for _ in range(draw.integers(1, 4)))
                numbers = f"{age / 70:.3f},{draw.uniform(0, 1):.3f}"
                file.write(
                    f"{numbers},{levels[level]},o{draw.integers(0, 30)},a{ads[0]},a{ads[1]},{tags},{clicked:d}\n"
                )
    return path


ARGUMENTS = {
    "deepfm": ["--data_dir={data}", "--model_dir={out}/model", "--servable_dir={out}/export", "--num_threads=1"],
    "din": ["--dataset={data}/din.pickle", "--model_dir={out}/model"],
    "wide_and_deep": ["--train_data={data}/train.csv", "--test_data={data}/test.csv", "--model_dir={out}/model"],
}


def run(program, workers, data, out, *more):
    """The figures that each rank of a ported program prints at its end."""
    arguments = [each.format(data=data, out=out) for each in ARGUMENTS[program]]
    # The lone worker of one program starts as users start it.
    is_warm = workers > 0 or program != "deepfm"
    done = launch.run(workers, AFTER / f"{program}.py", *arguments, *more, is_warm=is_warm)
    return [json.loads(line[line.index("{") :]) for line in done.stdout.splitlines() if '{"loss"' in line]


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """By program, by number of workers: (what each rank prints, the directory with its model)."""
    found = {}
    for program in PROGRAMS:
        for workers in (1, 2):
            out = tmp_path_factory.mktemp(f"{program}{workers}")
            found[program, workers] = run(program, 0 if workers == 1 else workers, data, out), out
    return found


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_two_workers_reach_the_loss_of_one(trained, program):
    (alone,), _ = trained[program, 1]
    both, _ = trained[program, 2]
    assert len(both) == 2
    for rank in both:
        assert rank["loss"] == pytest.approx(alone["loss"], abs=TOLERANCE)
    assert 0.1 < alone["loss"] < 0.69  # It has learned: a guess has 0.693.


@pytest.mark.integration
@pytest.mark.slow
def test_deepfm_predicts_by_key_and_exports(trained):
    ranks, out = trained["deepfm", 2]
    assert [rank["predicted"] for rank in ranks] == [32, 32]
    assert list(out.glob("export/*/saved_model.pb"))


@pytest.mark.integration
@pytest.mark.slow
def test_exporters_of_wide_and_deep_keep_as_many_as_they_are_told(trained):
    for workers in (1, 2):
        _, out = trained["wide_and_deep", workers]
        found = {name: len(list((out / "model" / "export" / name).iterdir())) for name in ("best", "latest", "final")}
        assert found == {"best": 1, "latest": 2, "final": 1}
