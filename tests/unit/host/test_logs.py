"""Log lines that cannot be written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bexplore.host import logs


@pytest.fixture(autouse=True)
def own_file():
    yield
    logs.detach_file()
    logs.configure(-1)


@pytest.mark.promise("the disk of the run's log.jsonl is full", "no more lines there; the exploration goes on")
def test_a_log_file_on_a_full_disk_ends_the_file_alone():
    logs.attach_file(Path("/dev/full"))
    logs.log.info("one")
    logs.log.info("two")

    assert logs._logbook.file is None


@pytest.mark.promise("the disk of stderr's file is full, or stderr is closed", "log.jsonl goes on")
@pytest.mark.parametrize("how", ["full", "closed", "absent"])
def test_a_stderr_that_cannot_be_written_costs_its_lines_alone(tmp_path, monkeypatch, how):
    stream = None if how == "absent" else Path("/dev/full" if how == "full" else "/dev/null").open("w")  # noqa: SIM115  # or none
    if stream is not None and how == "closed":
        stream.close()
    monkeypatch.setattr(logs, "_STDERR", stream)
    logs.configure(2)
    logs.attach_file(tmp_path / "log.jsonl")
    logs.log.warning("one")
    logs.log.warning("two")
    if how == "full":
        with pytest.raises(OSError, match="No space"):  # what is buffered is lost with the stream
            stream.close()

    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["one", "two"]
