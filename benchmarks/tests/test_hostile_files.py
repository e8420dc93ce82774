from __future__ import annotations

import random

import pytest

from benchmarks.hostile_files import _part, _tried
from benchmarks.hostile_mutations import hostile_file, seeds


@pytest.mark.promise(
    "400 generated files, mutated from those of all families", "a message each; no file is overwritten"
)
@pytest.mark.timeout(120)
def test_generated_hostile_files_end_in_a_message_and_overwrite_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    records = _part(7, 400, tmp_path)

    failures = [failure for record in records for failure in record["failures"]]
    assert [failure for failure in failures if not failure.endswith(" s")] == []  # time is the benchmark's affair
    assert {record["suffix"] for record in records} >= {".yaml", ".json", ".toml"}
    assert {record["init"] for record in records} == {"accepted", "refused"}


def test_a_seed_gives_the_same_files():
    first, second = (
        [hostile_file(chance, seeds()) for _ in range(5)] for chance in (random.Random(3), random.Random(3))
    )
    assert first == second


def test_a_program_that_breaks_or_writes_elsewhere_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("benchmarks.hostile_files.load_config", lambda *_, **__: 1 / 0)
    monkeypatch.setattr("benchmarks.hostile_files.bexplore", lambda _: (tmp_path / "other").write_text("x"))

    record = _tried(b"a: 1", ".yaml", has_earlier=False)

    assert record["load"] == "traceback"
    assert any("ZeroDivisionError" in failure for failure in record["failures"])
    assert "other was written" in record["failures"]
