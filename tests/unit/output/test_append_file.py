"""A file that lines are appended to, on a disk that refuses them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bexplore.output.event_files import AppendFile


@pytest.mark.promise("the disk of the log fills", "it is said once and ends nothing")
def test_a_log_that_its_disk_refuses_is_said_once_and_ends_nothing():
    said: list[str] = []
    log = AppendFile(Path("/dev/full"), said.append)

    log.write("one\n")
    log.write("two\n")

    assert len(said) == 1
    assert "No space left" in said[0]
