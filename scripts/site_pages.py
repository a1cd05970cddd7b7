"""Hooks of mkdocs that add files outside docs/ as pages of the site, and convert links to these files.

README.md is the first page of the site, and the programs in examples/ are one page. Links to these files work in the
repository, and are converted to links to the pages.
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
    # The content of a list item `1. ` is indented by three columns in CommonMark, but by four for mkdocs.
    markdown = re.sub(r"^(?=(?: {4})* {3}\S)", " ", markdown, flags=re.MULTILINE)
    return to_pages(markdown, r"\]\(\.\./")


def of_root(text):
    """Converts a file of the root to a page: adapts its links to docs/ and to other files of the root."""
    return to_pages(re.sub(r"(\]\(|src=\")docs/", r"\1", text), r"\]\(")


def to_pages(text, begin):
    """Converts links to files outside docs/ to links to their pages; `begin` is a pattern of their start."""
    for name, page in PAGES.items():
        text = re.sub(begin + re.escape(name), f"]({page}", text)
    text = re.sub(begin + r"examples/(\w+)\.(?:py|sh)", rf"]({EXAMPLES}#\1", text)
    return re.sub(begin + r"examples/?\)", f"]({EXAMPLES})", text)


def examples():
    """Returns the page with the programs in examples/."""
    lines = ["# Example programs"]
    for path in sorted([*(ROOT / "examples").glob("*.py"), *(ROOT / "examples").glob("*.sh")]):
        begin = "```python" if path.suffix == ".py" else "```bash"
        lines += ["", f"## examples/{path.name} {{#{path.stem}}}", "", begin, path.read_text().rstrip(), "```"]
    return "\n".join(lines) + "\n"
