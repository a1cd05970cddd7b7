"""The commands of docs/hosts.md."""

import pathlib
import re
import textwrap

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "hosts.md"


def commands(where):
    """Returns the blocks of the page for `host-1`, or for `each host`, without the line that names the host."""
    blocks = re.findall(r"^( {4,})# (.+)\n((?:\1.*\n)+)", PAGE.read_text(), re.MULTILINE)
    return [textwrap.dedent(text).rstrip() for _, named, text in blocks if named == where]
