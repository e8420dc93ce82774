"""What an installed user has: links, examples and extras that are the same without a clone."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import bexplore
from tests.builders import ROOT
from tests.rules.sources import syntax_nodes

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGE = sorted(Path(bexplore.__file__).parent.rglob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
A_USERS_OWN = "configs/job."  # a path of an example, in a project of a user


def setup():
    spec = importlib.util.spec_from_file_location("setup_of_the_wheel", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each string of a file."""
    for node in syntax_nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def test_the_readme_of_the_wheel_has_absolute_links_alone():
    address = PROJECT["project"]["urls"]["Repository"]
    own = (ROOT / "README.md").read_text()
    found = re.findall(r"\]\(([^)\s]+)\)", setup().with_absolute_links(own, address))

    assert len(found) == len(re.findall(r"\]\(([^)\s]+)\)", own)) > 20
    assert [link for link in found if not link.startswith(("https://", "#"))] == []
    inside = [link.removeprefix(f"{address}/blob/main/").partition("#")[0] for link in found if address in link]
    assert [path for path in inside if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](docs/guide.md#b)", "[a](X/blob/main/docs/guide.md#b)"),
        ("[a](https://pytorch.org) [b](#here) [c](mailto:a@b)", "[a](https://pytorch.org) [b](#here) [c](mailto:a@b)"),
    ],
)
def test_only_links_to_files_of_the_repository_are_changed(text, expected):
    assert setup().with_absolute_links(text, "X") == expected


def test_the_wheel_names_its_project_and_what_can_build_it():
    urls = PROJECT["project"]["urls"]

    assert {"Repository", "Documentation", "Changelog", "Issues"} <= set(urls)
    assert all(url.startswith(urls["Repository"]) for url in urls.values())
    inside = [url.partition("/blob/main/")[2] for url in urls.values() if "/blob/main/" in url]
    assert [path for path in inside if not (ROOT / path).exists()] == []
    assert "setuptools>=77" in PROJECT["build-system"]["requires"]  # older ones refuse the licence's expression


def test_no_text_of_the_package_names_a_file_of_the_clone():
    folders = re.compile(r"(?<![\w/])(configs|tests)/")
    named = [
        f"{path.name}:{line}"
        for path in PACKAGE
        for line, text in texts(path)
        if folders.search(text.replace(A_USERS_OWN, "")) and path.name != "starter.py"
    ]
    assert named == []


def test_extras_are_named_in_one_form():
    extras = set(PROJECT["project"]["optional-dependencies"])
    wrong, used = [], set()
    for path in (*PAGES, *PACKAGE):
        text = path.read_text()
        wrong += [f"{path.name}: {one}" for one in re.findall(r"\.\[[a-z-]+\]'", text)]
        used |= {name for one in re.findall(r"bexplore\[([a-z,-]+)\]", text) for name in one.split(",")}
    assert wrong == []
    assert used <= extras
    assert used >= extras - {"dev", "bench"}


def test_every_example_can_be_written_and_loaded_outside_of_the_clone(tmp_path):
    listed = subprocess.run(
        [sys.executable, "-m", "bexplore", "init", "--example"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    names = [line.split()[0] for line in listed.stdout.splitlines()]
    assert names == sorted(path.stem for path in (ROOT / "configs").glob("*.y*ml"))
    script = (
        "import sys\nfrom bexplore.cli import cli\nfrom bexplore import load_config\n"
        "for name in sys.argv[1:]:\n"
        "    cli(['init', '--example', name], standalone_mode=False)\n"
        "    if name != 'github-guard': load_config(f'{name}.yaml')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *names], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert {path.name for path in (ROOT / "configs").iterdir()} - {"__pycache__"} == {
        one.name for one in tmp_path.iterdir()
    }
    assert not re.search(r"configs/(?!job)", "".join(path.read_text() for path in tmp_path.glob("*.y*ml")))


@pytest.mark.promise("`init --example` with a path", "refused: only names of examples")
def test_an_example_that_is_unknown_or_a_path_is_refused(tmp_path):
    for name, hint in (("quikstart", "quickstart"), ("../pyproject", "Choose one of")):
        command = [sys.executable, "-m", "bexplore", "init", "--example", name]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, hint in done.stderr) == (2, True), done.stderr
