from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.config.builders import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder that writes files of jobs and loads them."""
    return Folder(tmp_path)
