"""Fixtures of the unit tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def unsynced_files() -> Iterator[None]:
    """Files of unit tests need not outlive the machine's power: journals and studies wait for no disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _descriptor: None)
        yield
