"""Durations come from a clock that nobody sets, and JSON is read in one place."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import bexplore
from bexplore.engine.protocol.messages import FROM_WORKER, receive
from bexplore.errors import BexploreError
from bexplore.guard.baseline import read_baseline
from bexplore.host.json_files import parse_json, read_json
from bexplore.run.journal import Journal
from tests.rules.sources import syntax_nodes, syntax_tree

PACKAGE = Path(bexplore.__file__).parent
# Reads the wall clock by one of these.
WALL = ("time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today")
# Module -> why it may reckon with the wall clock.
DATES = {
    "search/study/trials.py": "a lease in a storage that explorers of several hosts read: they have no other clock",
}
DEEP = 200_000


def name_of(node: ast.AST) -> str:
    """The dotted name of what is called, without what stands before its last two words."""
    words: list[str] = []
    while isinstance(node, ast.Attribute):
        words.append(node.attr)
        node = node.value
    return ".".join([*([node.id] if isinstance(node, ast.Name) else []), *reversed(words)][-2:])


def is_wall(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and (name_of(node.func) in WALL or name_of(node.func).endswith(".timestamp"))


def wall_names(tree: ast.AST) -> set[str]:
    """Names and attributes that hold a time of the wall clock."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=False))
                found |= {name_of(one) for one, value in pairs if is_wall(value)}
    return found - {""}


def reckonings(tree: ast.AST) -> Iterator[int]:
    """Lines in which a time of the wall clock is subtracted, added to or compared."""
    names = wall_names(tree)
    for node in ast.walk(tree):
        parts: list[ast.AST] = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub | ast.Add):
            parts = [node.left, node.right]
        elif isinstance(node, ast.Compare) and not isinstance(node.ops[0], ast.Is | ast.IsNot):
            parts = [node.left, *node.comparators]
        if any(is_wall(part) or name_of(part) in names for part in parts):
            yield node.lineno


def test_no_duration_is_a_difference_of_times_of_the_wall_clock():
    found = {
        str(path.relative_to(PACKAGE)): lines
        for path in PACKAGE.rglob("*.py")
        if (lines := sorted(set(reckonings(syntax_tree(path)))))
    }
    assert {name: lines for name, lines in found.items() if name not in DATES} == {}


@pytest.mark.parametrize(
    "code",
    [
        "began_s = time.time()\nelapsed_s = time.time() - began_s",
        "began_s, other = time.time(), 1\nspent = now() - began_s",
        "self.began = datetime.now(UTC)\ntook = other - self.began",
        "limit = time.time() + 5\nwhile time.time() < limit: pass",
    ],
)
def test_the_rule_sees_a_duration_of_the_wall_clock(code):
    assert list(reckonings(ast.parse(code)))


def test_json_is_read_in_one_place():
    # The observer runs in another environment, and reads what the explorer wrote.
    allowed = {"host/json_files.py", "command/observer/bexplore_observer/exchange.py"}
    readers = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for node in syntax_nodes(path)
        if isinstance(node, ast.Call) and name_of(node.func) in ("json.loads", "json.load")
    }
    assert readers == allowed


class Pipe:
    """A connection on which one message lies.

    Args:
        data: The message.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data

    def recv_bytes(self, most: int) -> bytes:
        return self._data


@pytest.mark.promise("JSON that is nested 200,000 deep, in a file or on a socket", "an error in one line")
@pytest.mark.parametrize("text", ["[" * DEEP, "[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP])
def test_json_that_is_nested_too_deeply_is_an_error_in_one_line(tmp_path, text):
    path = tmp_path / "deep.json"
    path.write_text(text + "\n")

    with pytest.raises(ValueError):
        parse_json(text)
    with pytest.raises(ValueError):
        receive(Pipe(text.encode()), FROM_WORKER)
    for read in (read_json, partial(read_baseline, typed="job.yaml"), lambda file: Journal(file).read()):
        with pytest.raises(BexploreError) as raised:
            read(path)
        assert "\n" not in raised.value.message
    assert json.loads("{}") == parse_json("{}")
