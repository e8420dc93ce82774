"""The README is true: its tables come from the code, its commands run, its example is executed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bexplore.errors import ExitCode
from bexplore.readme import settings_table

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def part(kind: str, name: str) -> str:
    match = re.search(rf"<!-- {kind}: {name} -->\n(.*?)<!-- end -->", README, re.DOTALL)
    assert match, f"README.md has no {kind} {name}"
    return match[1]


def test_every_key_of_the_explore_section_is_in_the_table_with_its_default():
    assert part("table", "explore").strip() == settings_table().strip()


def test_the_output_of_batch_sizes_is_what_the_command_prints():
    (command,) = re.findall(r"`bexplore (batch-sizes [^`]*)`", README)[:1]
    done = subprocess.run(
        [sys.executable, "-m", "bexplore", *command.split()], capture_output=True, text=True, check=True
    )

    assert part("output", "batch-sizes").strip().strip("`").strip("\n") == done.stdout.rstrip()


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`bexplore ([a-z-]+)", README))))
def test_every_command_that_is_named_exists(name):
    done = subprocess.run(
        [sys.executable, "-m", "bexplore", name, "--help"], capture_output=True, text=True, check=True
    )

    assert "Usage: bexplore" in done.stdout


def test_every_exit_code_is_told():
    for code in ExitCode:
        assert re.search(rf"(?<!\d){code.value} \w", README), code


def test_the_example_for_python_runs_and_prints_recommendations(tmp_path):
    example = part("example", "python").strip().removeprefix("```python").removesuffix("```")
    (tmp_path / "programs.py").write_text((ROOT / "tests" / "jobs" / "programs.py").read_text())
    (tmp_path / "job.yaml").write_text(
        "train_input: {batch_size: 8, micro_batch_size: {explore: {max: 2}}}\n"
        "explore:\n"
        "  device: cpu\n"
        "  max_probes: 3\n"
        "  compile: {backend: aot_eager}\n"
        "  workload: {model: 'programs:perceptron', batch: 'programs:samples', loss: 'programs:cross_entropy'}\n"
    )

    done = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"(\d+ \d+\.\d\dx \d+\n)+", done.stdout)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_configuration_loads_and_plans(path, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "bexplore", "explore", str(path), "--dry-run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "at most" in done.stderr or "nothing to explore" in done.stdout
