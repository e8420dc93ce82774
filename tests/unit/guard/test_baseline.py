"""A baseline in its file."""

from __future__ import annotations

import json
import math

import pytest

from bexplore.errors import EngineError, UserInputError
from bexplore.guard import read_baseline, write_baseline
from bexplore.trace.program_metrics import Item
from tests.unit.guard.builders import baseline, facts, worker


def test_a_baseline_is_read_as_it_was_written_and_is_readable(tmp_path):
    path = tmp_path / "job.guard.json"
    written = baseline(
        any_device=facts(graph_breaks=(Item(label="Call to print", count=2, where="model.py:12"),)),
        times=(worker(s4=10.0, s8=15.0), worker(s4=11.0)),
        recommended_micro_batch_size=8,
    )

    write_baseline(path, written)

    assert read_baseline(path, typed="job.yaml") == written
    assert '"Call to print": "2 model.py:12"' in path.read_text()
    assert '"flops": [0, 5000, 0]' in path.read_text()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "cannot read"),
        ("{", "is not JSON"),
        ("[]", "is not a baseline"),
        ('{"any_device": {}, "format_version": 99}', "format version 99"),
        ('{"any_device": {}, "format_version": 1}', "damaged"),
        ("[" * 100_000, "is not JSON"),
    ],
)
@pytest.mark.promise("a file that is no baseline", "one error; what to type")
def test_a_file_that_is_no_baseline_is_the_users_input(tmp_path, text, told):
    path = tmp_path / "job.guard.json"
    if text is not None:
        path.write_text(text)

    with pytest.raises(UserInputError, match=told) as raised:
        read_baseline(path, typed="job.yaml")
    assert "--update" in raised.value.hint


@pytest.mark.promise("a damaged baseline", "told when the file is read")
@pytest.mark.parametrize(
    "damage",
    [
        {"recommended_micro_batch_size": "eight"},
        {"toolchain": 3},
        {"times": [[{"micro_batch_size": 4, "pass_times_s": [], "cpu_time_s": 1}]]},
        {"any_device": {"traced_device": "cpu", "num_parameters": "many"}},
        {"any_device": {"traced_device": "cpu", "flops": [1, 2]}},
        {"any_device": {"traced_device": "cpu", "kernels": {"mm": "several"}}},
        {"times": [[{"micro_batch_size": 4, "pass_times_s": [math.inf], "cpu_time_s": 1}]]},
        {"times": [[{"micro_batch_size": 4, "pass_times_s": [1], "cpu_time_s": math.nan}]]},
        {"any_device": {"traced_device": "cpu", "flops": [0, 10**400, 0]}},
        {"memory_budget_bytes": 10**400},
    ],
)
def test_a_damaged_value_is_told_when_the_file_is_read(tmp_path, damage):
    path = tmp_path / "job.guard.json"
    path.write_text(json.dumps(baseline().as_record() | damage))

    with pytest.raises(UserInputError, match="damaged"):
        read_baseline(path, typed="job.yaml")


def test_a_baseline_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match="cannot write"):
        write_baseline(tmp_path / "file" / "job.guard.json", baseline())
