"""mkdocs calls it: pages of the site that are files outside of docs/, and links to those files.

README.md is the site's first page, and the programs of examples/ are a page together. A link to one of these files is
right where it stands in the repository, and becomes one to the page.
"""

import pathlib
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
EXAMPLES = "examples.md"


def on_files(files, config):
    for name, page in PAGES.items():
        if (ROOT / name).exists():
            files.append(File.generated(config, page, content=of_root((ROOT / name).read_text(encoding="utf-8"))))
    files.append(File.generated(config, EXAMPLES, content=examples()))
    return files


def on_page_markdown(markdown, page, config, files):
    # What belongs to a list's item `1. ` stands at the third column in CommonMark, and at the fourth for mkdocs.
    markdown = re.sub(r"^(?=(?: {4})* {3}\S)", " ", markdown, flags=re.MULTILINE)
    return to_pages(markdown, r"\]\(\.\./")


def of_root(text):
    """-> the text of a file of the root as a page: its links to docs/ and to other files of the root."""
    return to_pages(re.sub(r"(\]\(|src=\")docs/", r"\1", text), r"\]\(")


def to_pages(text, begin):
    """-> a text whose links to files outside of docs/ lead to their pages; `begin` is how such a link begins."""
    for name, page in PAGES.items():
        text = re.sub(begin + re.escape(name), f"]({page}", text)
    text = re.sub(begin + r"examples/(\w+)\.py", rf"]({EXAMPLES}#\1", text)
    return re.sub(begin + r"examples/?\)", f"]({EXAMPLES})", text)


def examples():
    """-> the page with the programs of examples/."""
    lines = ["# Example programs"]
    for path in sorted((ROOT / "examples").glob("*.py")):
        lines += ["", f"## examples/{path.name} {{#{path.stem}}}", "", "```python", path.read_text().rstrip(), "```"]
    return "\n".join(lines) + "\n"
