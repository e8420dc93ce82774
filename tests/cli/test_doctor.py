"""The command `doctor`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from bexplore.actions import doctor
from bexplore.cli.setup import doctor as command
from tests.builders import JOBS

JOB = """\
train_input: {{batch_size: 8, micro_batch_size: explore}}
explore:
  device: cpu
  memory_budget: 512MiB
  compile: {{backend: aot_eager}}
  workload: {{model: "programs:{model}", batch: "programs:samples", loss: "programs:cross_entropy"}}
"""


def job(folder: Path, model: str) -> Path:
    (folder / "programs.py").write_text((JOBS / "programs.py").read_text())
    path = folder / "job.yaml"
    path.write_text(JOB.format(model=model))
    return path


def test_json_is_one_object_a_line_and_a_problem_is_an_exit_code(monkeypatch):
    monkeypatch.setattr(doctor, "package_version", lambda name: "absent")
    done = CliRunner().invoke(command, ["--json", "--noise-s", "0"])
    checks = [json.loads(line) for line in done.output.splitlines()]
    assert {check["event"] for check in checks} == {"check"}
    assert {check["status"] for check in checks} <= {"ok", "warning", "problem"}
    assert done.exit_code == 4


def test_colours_are_for_terminals_and_no_color_is_respected(monkeypatch):
    monkeypatch.setattr(doctor, "package_version", lambda name: "absent")
    plain = CliRunner().invoke(command, ["--noise-s", "0"], color=True, env={"NO_COLOR": "1"})
    assert "\x1b" not in plain.output
    assert "\x1b" in CliRunner().invoke(command, ["--noise-s", "0"], color=True, env={"NO_COLOR": ""}).output


def test_every_command_that_needs_torch_says_so_where_it_is_missing(tmp_path):
    script = (
        "import sys, importlib.util as util\n"
        "real = util.find_spec\n"
        "util.find_spec = lambda name, *a: None if name == 'torch' else real(name, *a)\n"
        "from bexplore.cli import main\n"
        "sys.argv = ['bexplore', *sys.argv[1:]]\nmain()"
    )
    path = job(tmp_path, "perceptron")
    for arguments in (["explore", path], ["probe", path, "--micro-batch-size", "1"], ["trace", path]):
        command = [sys.executable, "-c", script, *map(str, arguments)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith("error: torch is not installed here\nhint: pip install torch"), done.stderr
