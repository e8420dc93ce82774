"""The rules of the front door: its length, the tree that it prints, its links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import bexplore
from tests.builders import ROOT

README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
TREE = re.compile(r"<!-- generated: tree -->\n```\nbexplore/\n(.*?)```", re.DOTALL)


def tree_in(path: Path) -> list[str]:
    """The entries of the package that a page lists."""
    (lines,) = TREE.findall(path.read_text())
    return [line.split()[0] for line in lines.splitlines()]


def links_in(path: Path) -> Iterator[str]:
    """The targets of the links of a page that lie in this repository."""
    yield from (link for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()) if "://" not in link)


def anchors_in(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_readme_and_architecture_list_the_entries_of_the_package():
    entries = {
        f"{path.name}/" if path.is_dir() else path.name
        for path in Path(bexplore.__file__).parent.iterdir()
        if path.name != "__pycache__"
    }
    assert set(tree_in(README)) == entries
    assert tree_in(README) == tree_in(ROOT / "docs" / "architecture.md")


def test_each_link_leads_to_a_file_and_to_a_heading_of_it():
    broken = []
    for page in PAGES:
        for link in links_in(page):
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            if not target.exists() or (anchor and anchor not in anchors_in(target)):
                broken.append(f"{page.name}: {link}")
    assert broken == []


def test_the_readme_leads_to_each_page():
    assert {path.name for path in PAGES} - {Path(link.partition("#")[0]).name for link in links_in(README)} == {
        README.name
    }


def test_the_page_of_benchmarks_names_each_make_target_of_a_benchmark():
    targets = re.findall(r"^(bench[a-z-]*|fit-[a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    page = (ROOT / "docs" / "benchmarks.md").read_text()

    assert [name for name in targets if f"make {name}`" not in page] == []
