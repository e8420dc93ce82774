"""Which statements ask for the kind of a device, and whether they are noted when they run."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks import device_lines

SOURCE = """
def free(device):
    '''Of "cuda" or another.'''
    kind = device.type
    if kind == "cpu":
        return 0
    if device.type == "cpu":
        return 1
    else:
        a = 2
    if device.type != "cpu":
        return a
    return 3
"""


def test_statements_that_name_a_device_and_cuda_branches_are_found():
    assert device_lines.asking_lines(SOURCE) == {4, 7, 10, 11, 12}


def test_what_runs_in_any_process_is_noted_once(tmp_path):
    (tmp_path / "asked.py").write_text(SOURCE)
    listed, seen = tmp_path / "listed.json", tmp_path / "seen"
    listed.write_text(f'{{"{tmp_path / "asked.py"}": [4, 7, 10, 11, 12]}}')
    program = "import asked, types; [print(asked.free(types.SimpleNamespace(type=one))) for one in ('cuda', 'cpu')]"
    environment = {
        "PYTHONPATH": os.pathsep.join([str(device_lines.HOOK), str(tmp_path)]),
        "BEXPLORE_DEVICE_LINES": str(listed),
        "BEXPLORE_DEVICE_LINES_SEEN": str(seen),
    }

    result = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | environment, check=True, capture_output=True, text=True
    )

    assert result.stdout.split() == ["2", "0"]
    assert [line.rpartition(":")[2] for line in seen.read_text().split()] == ["4", "7", "10", "11", "12"]
