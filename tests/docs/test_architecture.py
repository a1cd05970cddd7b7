"""The page about the packages: its picture, its counts and its files."""

import importlib.util
import re

import pytest

from tests.docs import page

ARCHITECTURE = page.DOCS / "architecture.md"


@pytest.fixture(scope="module")
def drawn():
    """The module scripts/draw_rooms.py."""
    spec = importlib.util.spec_from_file_location("draw_rooms", page.ROOT / "scripts" / "draw_rooms.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_is_that_of_the_contracts_and_docstrings(drawn):
    assert drawn.PICTURE.read_text() == drawn.draw(), "python scripts/draw_rooms.py draws it anew"


def test_each_file_that_the_page_names_is_there():
    named = re.findall(r"`([a-z_]+/[\w/]*(?:\.py)?)`", ARCHITECTURE.read_text())
    places = page.ROOT, page.ROOT / "ctr_trainer"
    assert len(named) > 50
    assert not [name for name in named if "NAME" not in name and not any((place / name).exists() for place in places)]


def test_the_page_counts_the_packages_and_their_layers(drawn):
    layers = drawn.layers("ctr_trainer")
    counts = f"{sum(map(len, layers))} packages in {len(layers)} layers"
    assert counts in " ".join(ARCHITECTURE.read_text().split()), f"ctr_trainer has {counts}"
