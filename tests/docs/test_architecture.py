"""The page about the rooms."""

import re

from tests.docs import page

ARCHITECTURE = page.DOCS / "architecture.md"


def test_each_file_that_the_page_names_is_there():
    named = re.findall(r"`([a-z_]+/[\w/]*(?:\.py)?)`", ARCHITECTURE.read_text())
    places = page.ROOT, page.ROOT / "ctr_trainer"
    assert len(named) > 50
    assert not [name for name in named if "NAME" not in name and not any((place / name).exists() for place in places)]
