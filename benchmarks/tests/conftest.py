"""The fixtures of the product's tests, and the marker that leaves the tests of the scripts to `make test-rest`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import kept_bytecode, own_device_lock, run_on, warm_on

__all__ = ["kept_bytecode", "own_device_lock", "run_on", "warm_on"]

HERE = Path(__file__).parent
OF_THE_PAGES = "test_readme.py"  # quick, and wrong as soon as a module is renamed


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE and item.path.name != OF_THE_PAGES:
            item.add_marker(pytest.mark.benchmark)
