"""Bounds of the structure: figures that grow unseen, each with the bound that issue 25 has set."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import bexplore
from bexplore.engine.runner import EngineRunner

PACKAGE = Path(bexplore.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
FACE = PACKAGE / "__init__.py"  # imports every public name where type checkers look; test_types.py holds which
NOISE = re.compile("interleav|contention|drift|scheduler_wait|background_cpu", re.IGNORECASE)
# The doctor's measurement of noise lies in that module; a line that imports it is no knowledge of its own.
FOREIGN = "from bexplore.host.contention import"


def knows_of_noise(path: Path) -> bool:
    lines = (line for line in path.read_text().splitlines() if not line.startswith(FOREIGN))
    return any(NOISE.search(line) for line in lines)


def places_of_hidden_imports(path: Path) -> Iterator[str]:
    """Functions, and blocks under a condition, that import from this package; the imports of one have one reason."""
    for node in ast.walk(ast.parse(path.read_text())):
        inner = node.body if isinstance(node, ast.FunctionDef | ast.With | ast.If) else []
        modules = [statement.module for statement in inner if isinstance(statement, ast.ImportFrom)]
        modules += [alias.name for one in inner if isinstance(one, ast.Import) for alias in one.names]
        if any(str(module).startswith("bexplore") for module in modules):
            yield f"{path.relative_to(PACKAGE)}:{node.lineno}"


def test_at_most_18_modules_have_fewer_than_60_lines():
    short = [path for path in FILES if path.name != "__init__.py" and len(path.read_text().splitlines()) < 60]
    assert len(short) <= 18, short


def test_at_most_14_files_know_of_the_noise_of_a_host():
    noisy = [str(path.relative_to(PACKAGE)) for path in FILES if knows_of_noise(path)]
    assert len(noisy) <= 14, noisy


def test_own_imports_are_hidden_in_at_most_15_places():
    hidden = [place for path in FILES if path != FACE for place in places_of_hidden_imports(path)]
    assert len(hidden) <= 15, hidden


def test_a_runner_of_the_engine_has_at_most_7_parameters():
    assert len(inspect.signature(EngineRunner).parameters) <= 7
