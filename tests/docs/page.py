"""What the pages of the documentation say, as the tests read it."""

import pathlib
import re
import shlex

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def pages():
    """Returns the files of the documentation: docs/ and the pages in the root."""
    return [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]


def commands(text, program="python -m ctr_trainer"):
    """Returns the arguments of each command line of a program in a page; a backslash joins lines, a pipe ends one."""
    text = text.replace("\\\n", " ")
    lines = re.findall(rf"^ {{4}}(?:.* )?{re.escape(program)} (.*)$|^{re.escape(program)} (.*)$", text, re.MULTILINE)
    return [shlex.split(re.sub(r" 2>&1 .*|  +#.*", "", indented or flush)) for indented, flush in lines]


def blocks(text, language):
    """Returns the text of each fenced block of a language, without its indentation."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indent}", "", block, flags=re.MULTILINE) for indent, block in found]
