"""Every figure of the search and of the measurement has a name and a source beside it."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import bexplore

ROOT = Path(bexplore.__file__).parent.parent
FILES = sorted(path for room in ("search", "measurement") for path in (ROOT / "bexplore" / room).rglob("*.py"))
SOURCES = ("Source", "benchmarks/", "results/", "sensitivity.md")


def constants(path: Path) -> Iterator[tuple[str, str]]:
    """Name and comments of each module-level constant that holds a number."""
    source = path.read_text()
    lines = source.splitlines()
    for node in ast.parse(source).body:
        numbers = (item for item in ast.walk(node) if isinstance(item, ast.Constant))
        if isinstance(node, ast.Assign) and any(isinstance(number.value, int | float) for number in numbers):
            for item in ast.walk(node.targets[0]):
                if isinstance(item, ast.Name):
                    yield item.id, comments(lines, node)


def comments(lines: list[str], node: ast.Assign) -> str:
    """The comment beside an assignment, and the last one above it without a blank line between."""
    found = [line.partition("#")[2] for line in lines[node.lineno - 1 : node.end_lineno]]
    row = node.lineno - 2
    while row >= 0 and lines[row] and not lines[row].startswith("#"):
        row -= 1
    while row >= 0 and lines[row].startswith("#"):
        found.append(lines[row])
        row -= 1
    return "\n".join(found)


def test_each_constant_of_search_and_measurement_names_its_source():
    without = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in FILES
        for name, text in constants(path)
        if not any(source in text for source in SOURCES)
    ]
    assert without == []


def test_no_constant_of_search_and_measurement_is_a_judgement_alone():
    judged = [f"{path.relative_to(ROOT)}: {name}" for path in FILES for name, text in constants(path) if "judg" in text]
    assert judged == []


def test_each_constant_that_cites_the_sensitivity_benchmark_was_varied_by_it():
    rows = json.loads((ROOT / "benchmarks/results/sensitivity.json").read_text())["rows"]
    varied = {row["constant"] for row in rows}
    cited = {name for path in FILES for name, text in constants(path) if "sensitivity.md" in text}
    beside = {name for path in FILES for name, text in constants(path) if "Source" in text.splitlines()[0]}
    assert cited - beside - varied == set()
    assert varied - cited == set()
