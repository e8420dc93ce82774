"""The rules of the structure: one import direction, one door for each third-party package, the public names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import bexplore

PACKAGE = Path(bexplore.__file__).parent

# A module imports only from modules that stand before it.
ORDER = [
    "errors",
    "blas",
    "locks",
    "units",
    "devices",
    "depths",
    "batching",
    "intervals",
    "turns",
    "probe",
    "job",
    "facts",
    "logs",
    "document",
    "settings",
    "config",
    "dialects",
    "space",
    "posterior",
    "calibration",
    "recommendation",
    "policy",
    "noise",
    "program_warnings",
    "sampler",
    "explorer",
    "replay",
    "training_step",
    "caching_allocator",
    "simulator",
    "journal",
    "workloads",
    "trace",
    "engine",
    "identity",
    "advice",
    "events",
    "conclusion",
    "estimate",
    "exploration",
    "single",
    "apply",
    "doctor",
    "guard",
    "sinks",
    "report",
    "cli",
    "pytest_plugin",
    "__main__",
]

# Package -> the only rooms that may import it.
DOORS = {
    "torch": {"workloads", "trace", "engine", "training_step"},
    "optuna": {"sampler", "explorer"},
    "pydantic": {"settings"},
    "ruamel": {"document"},
    "click": {"cli"},
    "jinja2": {"report"},
    "matplotlib": {"report"},
    "rich": {"cli", "sinks"},
    "psutil": {"engine"},
    "structlog": {"logs", "report"},
    "transformers": {"workloads"},
    "pytest": {"pytest_plugin"},
}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Dotted names that a file imports, those inside functions and under TYPE_CHECKING included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "bexplore":
                yield from (f"bexplore.{alias.name}" for alias in node.names)
            else:
                yield node.module


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_its_left(path):
    own = ORDER.index(room_of(path))
    for name in imports(path):
        if name.startswith("bexplore."):
            other = name.split(".")[1]
            if other != "__version__":
                assert ORDER.index(other) <= own, f"{path.name} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_each_third_party_package_has_its_doors(path):
    for name in imports(path):
        package = name.split(".")[0]
        assert room_of(path) in DOORS.get(package, {room_of(path)}), f"{path.name} imports {name}"


def test_in_the_engine_only_the_worker_imports_torch_and_nobody_imports_the_worker():
    engine, worker = PACKAGE / "engine", PACKAGE / "engine" / "worker"
    outside = [path for path in FILES if worker not in path.parents]
    uses_torch = {path for path in outside if engine in path.parents and "torch" in map(first_part, imports(path))}
    uses_worker = {
        path for path in outside for name in imports(path) if f"{name}.".startswith("bexplore.engine.worker.")
    }
    assert (uses_torch, uses_worker) == (set(), set())


def first_part(name: str) -> str:
    return name.split(".")[0]


def test_every_module_has_its_place_in_the_order():
    assert {room_of(path) for path in FILES} == set(ORDER)


def test_the_public_names_are_these_and_each_exists():
    assert sorted(bexplore.__all__) == [
        "BexploreError",
        "Config",
        "Finished",
        "Planned",
        "ProbeFinished",
        "ProbeStarted",
        "Recommended",
        "Stored",
        "Surroundings",
        "Traced",
        "TrainingStep",
        "__version__",
        "explore",
        "load_config",
    ]
    for name in bexplore.__all__:
        assert getattr(bexplore, name) is not None
