"""The documentation site."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The directory of the site, built like `make docs` in strict mode, in which broken links are errors."""
    for package in ("material", "mkdocstrings_handlers.python"):
        pytest.importorskip(package, reason=f"the site needs {package}: pip install -e '.[docs]'")
    site = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", f"--site-dir={site}"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return site


def test_every_page_and_the_roots_own_are_in_the_site(site):
    built = {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}
    pages = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")}
    assert (
        pages | {pathlib.Path(name) for name in ("index", "examples", "contributing", "security", "changelog")} <= built
    )


def test_a_link_of_the_readme_to_a_page_and_to_a_program_leads_to_their_pages(site):
    text = (site / "index.html").read_text()
    assert 'href="features.html"' in text and 'href="docs/' not in text
    recipe = (site / "recipe.html").read_text()
    assert 'href="examples.html#plain_estimator"' in recipe
    assert 'id="plain_estimator"' in (site / "examples.html").read_text()


def test_the_guides_are_in_small_groups_with_the_titles_of_the_readme():
    nav = dict(each for group in yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"] for each in group.items())
    table = (ROOT / "README.md").read_text().partition("## Documentation")[2].partition("##")[0]
    titles = {page: title for title, page in re.findall(r"\[([^]]+)\]\(docs/(\w+\.md)\)", table)}
    groups = [nav["Start"], nav["Figures"], *(pages for group in nav["Guides"] for pages in group.values())]
    assert max(map(len, groups)) <= 6 and max(map(len, nav["Guides"])) <= 6
    shown = {page: title.lower() for group in groups for each in group for title, page in each.items()}
    assert {page: title.lower() for page, title in titles.items() if page != "architecture.md"}.items() <= shown.items()


def test_the_search_needs_no_server(site):
    assert "early stopping" in (site / "search" / "search_index.js").read_text()


def test_commands_within_a_numbered_list_are_code(site):
    lists = re.findall(r"<ol>.*?</ol>", (site / "hosts.html").read_text(), re.DOTALL)
    assert any("<pre>" in steps for steps in lists)


def test_the_api_pages_have_the_docstrings(site):
    estimator = (site / "api" / "estimator.html").read_text()
    assert "Trains until the input ends" in estimator and "keep_checkpoint_max" in estimator
