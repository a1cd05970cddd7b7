"""docs/running.md: the samples of the log are lines that the code writes."""

import ast
import functools
import re

import pytest

from tests import small
from tests.docs import page
from tests.parallel import launch

SAMPLES = [
    line
    for block in page.blocks((page.DOCS / "running.md").read_text(), "text")
    for line in block.splitlines()
    if not line.startswith(("slowest phase", "most likely"))
]
# What no training in order logs: messages of an end from outside, of a failure and of a stall.
RARE = tuple(line for line in SAMPLES if line.startswith(("stopped by ", "error: ", "rank 0 has waited ")))


@pytest.mark.integration
@pytest.mark.slow
def test_two_workers_log_the_samples_but_for_their_numbers(tmp_path):
    data = small.make(tmp_path, rows=1003)
    flags = f"--train_data={data} --eval_data={data} --model_dir={tmp_path / 'model'} --hidden_units=8 --batch_size=16"
    flags += " --recipe=none --log_steps=10 --eval_steps=16 --sync_steps=5"
    done = launch.run(2, "-m", "ctr_trainer", "train", *flags.split())
    logged = {_without_numbers(line.partition("] - ")[2]) for line in done.stderr.splitlines()}
    assert len(SAMPLES) - len(RARE) >= 15
    for sample in set(SAMPLES) - set(RARE):
        shape, dots, _ = _without_numbers(sample).partition("...")
        alike = [line for line in logged if line == shape or line.startswith(shape if dots else f"{shape},")]
        assert alike, (sample, sorted(logged))


def _without_numbers(line):
    """Returns a message of the log with N in place of each number."""
    return re.sub(r"\d[\d,]*(\.\d+)?", "N", line)


@pytest.mark.parametrize("sample", RARE)
def test_a_message_of_an_end_or_a_stall_is_in_the_sources(sample):
    """The words of a message that are no name, path or number stand in the sources, three in a row."""
    words, found = 0, 0
    for part in re.split(r"\S*[\d/]\S*(?: s\b)?|SIG\w+|host-\w|error:", sample):
        part = part.split()
        rows = [part[at : at + 3] for at in range(max(len(part) - 2, 1))] if len(part) > 1 else []
        words += len(rows)
        found += sum(" ".join(row) in _texts() for row in rows)
    assert found > words / 2 > 1


@functools.cache
def _texts():
    """Returns all texts of the package's modules, as one."""
    trees = [ast.parse(path.read_text()) for path in (page.ROOT / "ctr_trainer").rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return "\n".join(node.value for node in nodes if isinstance(node.value, str))
