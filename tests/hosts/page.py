"""The commands of docs/hosts.md."""

import pathlib
import re
import textwrap

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "hosts.md"


def commands(where):
    """-> the blocks of the page that are run on `host-1`, or on `each host`, without that line."""
    blocks = re.findall(r"^( {4,})# (.+)\n((?:\1.*\n)+)", PAGE.read_text(), re.MULTILINE)
    return [textwrap.dedent(text).rstrip() for _, named, text in blocks if named == where]
