"""Adds the README to the metadata in pyproject.toml, with links that also work outside the repository."""

import pathlib
import re

import setuptools

# The address at which files of the repository can be read, such as https://host/owner/ctr_trainer/blob/main. None is
# public yet; without an address a link to a file becomes its text.
REPOSITORY = ""


def read_readme() -> str:
    """Returns the README with absolute links; "" if it is not there."""
    readme = pathlib.Path(__file__).resolve().parent / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.exists() else ""
    link = re.compile(r"!?\[([^]]*)\]\((?!https?://)([^)]*)\)")
    return link.sub(rf"[\1]({REPOSITORY}/\2)" if REPOSITORY else r"\1", text)


setuptools.setup(
    long_description=read_readme(),
    long_description_content_type="text/markdown",
    project_urls={"Source": REPOSITORY} if REPOSITORY else {},
)
