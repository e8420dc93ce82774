"""Options of the command line are named in `cli/` alone: elsewhere messages name fields, keys or whole commands."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import bexplore
from tests.rules.sources import syntax_nodes

PACKAGE = Path(bexplore.__file__).parent
ELSEWHERE = ("cli", "pytest_plugin.py")
# `--set` is the place of a value that the user typed.
PLACES = {"set"}
# Words that are options of ours and of other programs, in text about those.
FOREIGN = {"batch-size", "overlap", "config", "python", "env", "connect", "help", "mode", "output"}


def texts(path: Path) -> Iterator[str]:
    """The string constants of a file; of an f-string all its parts together."""
    parts = {id(one) for node in syntax_nodes(path) if isinstance(node, ast.JoinedStr) for one in node.values}
    for node in syntax_nodes(path):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(one.value) for one in node.values if isinstance(one, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value


def test_no_message_outside_of_the_command_line_names_an_option():
    commands = "".join(path.read_text() for path in (PACKAGE / "cli").glob("*.py"))
    options = set(re.findall(r'"--([a-z][a-z-]+)"', commands)) - PLACES - FOREIGN
    assert {"fresh", "model-dir", "replicas"} <= options
    named = re.compile(rf"(?<![\w-])--({'|'.join(sorted(options))})(?![\w-])")
    found = [
        f"{path.relative_to(PACKAGE)}: {text}"
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] not in ELSEWHERE
        for text in texts(path)
        if named.search(text) and " " in text and "bexplore " not in text
    ]
    assert found == []
