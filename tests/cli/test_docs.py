"""README and docs are true: their commands run, their outputs are printed, their example is executed."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from bexplore.cli.entry import COMMANDS
from bexplore.errors import ExitCode
from tests.builders import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = "\n".join(path.read_text() for path in PAGES)


def part(kind: str, name: str) -> str:
    match = re.search(rf"<!-- {kind}: {name} -->\n(.*?)<!-- end -->", TEXT, re.DOTALL)
    assert match, f"no page has the {kind} {name}"
    return match[1]


def test_the_output_of_batch_sizes_is_what_the_command_prints():
    (command,) = re.findall(r"`bexplore (batch-sizes [^`]*)`", TEXT)[:1]
    done = subprocess.run(
        [sys.executable, "-m", "bexplore", *command.split()], capture_output=True, text=True, check=True
    )

    assert part("output", "batch-sizes").strip().strip("`").strip("\n") == done.stdout.rstrip()


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`bexplore ([a-z-]+)", TEXT))))
def test_every_command_that_is_named_exists(name):
    done = subprocess.run(
        [sys.executable, "-m", "bexplore", name, "--help"], capture_output=True, text=True, check=True
    )

    assert "Usage: bexplore" in done.stdout


def test_every_make_target_that_is_named_exists():
    for name in set(re.findall(r"(?:`|^)make ([a-z-]+)", TEXT, re.MULTILINE)) - {"test"}:  # which runs this
        done = subprocess.run(["make", "--dry-run", name], cwd=ROOT, capture_output=True, text=True, check=False)

        assert done.returncode == 0, done.stderr


TOUR_JOB = """\
train_input:
  batch_size: 8
  micro_batch_size: {explore: {max: 4}}   # find it
explore:
  device: cpu
  memory_budget: 512MiB
  max_probes: 3
  compile: {backend: aot_eager}
  workload: {model: 'programs:perceptron', batch: 'programs:samples', loss: 'programs:cross_entropy'}
"""
PLACEHOLDERS = {
    "CONFIG": "job.yaml",
    "[CONFIG]": "job.yaml",
    "RUN": "local_compile_train/model_dir",
    "local_compile_train/quickstart": "local_compile_train/model_dir",
    "SOURCE": "train.py",
    "TABLE": "table.csv",
    "N": "2",
    "FILE": "job.baseline.json",
    "configs/quickstart.yaml": "job.yaml",
    "configs/settings.yaml": "job.yaml",
}
# Noise would take ten seconds of each run, times depend on what runs beside them, and nobody is there to be asked.
EXTRA = {"doctor": ["--noise-s", "0"], "guard": ["--facts", "exact"], "apply": ["--yes"]}
# A reference needs a repository with a history (tests/engine/test_guard.py), a rank an explorer that it calls, and the
# network a launcher (tests/engine/test_network.py), a comparison two runs (tests/cli/test_report.py).
ONLY_ELSEWHERE = ("--against", "--connect", "network", "BEFORE")


def commands() -> list[list[str]]:
    """What stands between backquotes, in order, each once; and what the summary of the example names to type."""
    found = re.findall(r"`bexplore ([a-z-]+(?: [^`|]*)?)`", TEXT) + re.findall(r"^Apply: +bexplore (.*)$", TEXT, re.M)
    lines = list(dict.fromkeys(" ".join(PLACEHOLDERS.get(word, word) for word in line.split()) for line in found))
    words = [line.split() for line in lines]
    # A baseline must be there before anything is compared with it. The size is written into the file last: after that
    # there is nothing left to explore.
    return sorted(words, key=lambda line: (line[0] == "apply", line[0] == "report", "--update" not in line))


def test_every_command_of_readme_and_docs_does_what_it_says_in_its_order(tmp_path):
    (tmp_path / "programs.py").write_text((ROOT / "tests" / "jobs" / "programs.py").read_text())
    (tmp_path / "job.yaml").write_text(TOUR_JOB)
    (tmp_path / "train.py").write_text("import argparse\nargparse.ArgumentParser().add_argument('--batch-size')\n")
    table = "curve_id,micro_batch_size,throughput_samples_per_s,step_time_s,peak_mem_gib,oom\n"
    (tmp_path / "table.csv").write_text(table + "a,1,10,,1,0\na,2,19,,2,0\na,4,30,,4,0\n")
    said = {}
    for words in commands():
        if any(word in ONLY_ELSEWHERE for word in words):
            continue
        done = subprocess.run(
            [sys.executable, "-m", "bexplore", *words, *EXTRA.get(words[0], [])],
            cwd=tmp_path,
            input="y\n",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"bexplore {' '.join(words)}: {done.stderr[-1000:]}"
        said[" ".join(words)] = done.stdout
    assert {line.split()[0] for line in said} == set(COMMANDS) - {"worker", "network"}
    assert "--batch-size {micro_batch_size}" in (tmp_path / "train.explore.yaml").read_text()
    assert "Use micro_batch_size" in said["explore job.yaml"]
    assert re.search(r"^-  micro_batch_size: \{explore: \{max: 4\}\}   # find it$", said["apply job.yaml"], re.M)
    assert "# find it" in (tmp_path / "job.yaml").read_text()
    lines = {line[:19].rstrip() for line in part("output", "doctor").splitlines() if line.startswith(("ok", "warning"))}
    printed = {line[:19].partition(" ")[2].strip() for line in said["doctor job.yaml"].splitlines()}
    assert {line.partition(" ")[2].strip() for line in lines} - {"noise"} <= printed


def test_every_exit_code_is_told():
    for code in ExitCode:
        assert re.search(rf"(?<!\d){code.value} \w", TEXT), code


def test_the_example_for_python_prints_recommendations_and_the_answer(tmp_path):
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
    assert re.fullmatch(r"(\d+ \d+\.\d\dx \d+\n)+\d+ \d+\.\d+ \d+\n", done.stdout)


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


def test_every_module_that_is_named_exists():
    named = set(re.findall(r"`(?:bexplore/)?([a-z_]+/[a-z_/]+(?:\.py|/))`", TEXT))

    assert {name for name in named if not any((root / name).exists() for root in (ROOT / "bexplore", ROOT))} == set()


def test_every_result_of_a_benchmark_is_on_the_page_of_benchmarks():
    page = (ROOT / "docs" / "benchmarks.md").read_text()

    assert [path.name for path in (ROOT / "benchmarks" / "results").glob("*.md") if path.name not in page] == []
