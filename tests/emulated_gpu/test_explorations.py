"""Explorations on an emulated device: what is true there is told, and nothing else is."""

from __future__ import annotations

import json

import pytest

from tests.builders import ROOT

EXPLORE = """
    import sys
    from pathlib import Path

    Path("programs.py").write_text((Path({root!r}) / "tests/jobs/programs.py").read_text())
    Path("job.yaml").write_text('''
    train_input: {{batch_size: 64, micro_batch_size: explore}}
    explore:
      device: cuda
      max: 32
      max_probes: 3
      compile: {compile}
      workload: {{model: "programs:perceptron", batch: "programs:samples", loss: "programs:cross_entropy"}}
    ''')
    from bexplore.cli import main
    if __name__ == "__main__":
        try:
            main(["explore", "job.yaml", "--json"])
        except SystemExit as end:
            assert not end.code, end.code
"""


@pytest.mark.parametrize("compile", ["false", "true"])
def test_a_job_is_explored_and_its_result_says_that_the_device_is_emulated(emulate, tmp_path, monkeypatch, compile):
    monkeypatch.chdir(tmp_path)
    events = [json.loads(line) for line in emulate(EXPLORE.format(root=str(ROOT), compile=compile))]

    kinds = {event["event"] for event in events}
    result = events[-1]
    assert "probe" in kinds and "recommendation" not in kinds
    assert result["device_info"]["is_emulated"] is True
    assert result["warnings"][0].startswith("NVIDIA H100 80GB HBM3 is emulated: ")
    assert result["gradient_equivalence"] is None or "emulated" in result["gradient_equivalence"]["message"]
    assert all(event["peak_memory_bytes"] for event in events if event["event"] == "probe")


def test_doctor_says_that_the_device_is_emulated_and_compares_no_result(emulate, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = """
    from bexplore.cli import main
    if __name__ == "__main__":
        try:
            main(["doctor"])
        except SystemExit as end:
            pass
    """
    (line,) = [line for line in emulate(program) if "kernel " in line]
    assert line.startswith("ok ") and "emulated" in line
