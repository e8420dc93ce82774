"""The rules of the tests: what each folder may start, and that no test of the product needs the benchmarks."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.builders import ROOT
from tests.rules.sources import syntax_nodes

TESTS = ROOT / "tests"
UNIT = sorted((TESTS / "unit").rglob("*.py"))
FOLDERS = {"cli", "engine", "torch", "unit", "rules", "slurm", "emulated_gpu", "gpu_trace"}  # of tests
FOLDERS |= {"jobs", "recorded", "simulated"}  # of what they need
# Starting a process, or a runner that does. `run_on` and `warm_on` make engine runners.
NEVER_IN_UNIT = frozenset({"torch", "transformers", "subprocess", "EngineRunner", "WorkerProcess", "run_on", "warm_on"})


def names(path: Path) -> Iterator[str]:
    """Modules and names that a file imports, and the arguments of its functions, which may be fixtures."""
    for node in syntax_nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module).split(".")[0]
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.arg):
            yield node.arg


def test_a_unit_test_starts_neither_torch_nor_a_process():
    assert [f"{path}: {name}" for path in UNIT for name in names(path) if name in NEVER_IN_UNIT] == []


def test_importing_every_unit_test_leaves_torch_out():
    script = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "sys.exit('torch is imported' if 'torch' in sys.modules else 0)"
    )
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in UNIT]
    done = subprocess.run(
        [sys.executable, "-c", script, *modules], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_no_test_of_the_product_imports_the_benchmarks():
    assert [
        str(path) for path in TESTS.rglob("*.py") if "/jobs/" not in str(path) and "benchmarks" in names(path)
    ] == []


def test_every_test_lies_in_one_of_the_folders():
    assert {path.name for path in TESTS.iterdir() if path.is_dir() and path.name != "__pycache__"} == FOLDERS
    assert sorted(TESTS.glob("test_*.py")) == []


def test_a_unit_test_lies_where_its_subject_lies():
    strays = [
        str(path.relative_to(TESTS))
        for path in UNIT
        if not (ROOT / "bexplore" / path.parent.relative_to(TESTS / "unit")).is_dir()
    ]
    assert strays == []
