"""Several explorers that share the search of one training command: in a database, or in the folder of one run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import optuna
import pytest

from tests.builders import ROOT
from tests.engine.command_starts import TRAIN, marked_processes, shared_memory

pytestmark = pytest.mark.external

SIZES = (2, 8, 32, 128)  # a step takes about the same time at each: the largest is the fastest by far
SEARCHING = ("base", "search")  # purposes of a probe that looks for something new; others repeat a size on purpose
# The command line, with as little waiting as in other tests of commands, and as one of several hosts: leases name them.
EXPLORER = """
import os, socket
from bexplore.command import watch
watch.LEAST_TIMED_S, watch.MOST_TIMED_S, watch.UNOBSERVED_S = 0.2, 0.2, 120.0
socket.gethostname = lambda: os.environ["TEST_HOST"]
from bexplore.cli import main
main()
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts explorers; none of them, and nothing of their trainings, is left when the test ends."""
    training = (sys.executable, str(TRAIN), "--micro-batch-size", "{micro_batch_size}", "--out", "{output_dir}")
    sizes = f"explore.candidates={list(SIZES)}"
    begun: list[subprocess.Popen[str]] = []

    def started(host: str, *options: str) -> subprocess.Popen[str]:
        words = ("explore", "--sizes-per-start", "1", "--replicas", "1", "--set", sizes, *options, "--", *training)
        begun.append(
            subprocess.Popen(
                [sys.executable, "-c", EXPLORER, *words],
                cwd=tmp_path,
                env=os.environ | {"TEST_HOST": host, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        return begun[-1]

    yield started
    for explorer in begun:
        explorer.kill()
        explorer.wait()
    assert marked_processes(tmp_path) == shared_memory(tmp_path) == []


def wait_for_a_training_in(folder: Path, explorer: subprocess.Popen[str]) -> None:
    """Wait until an explorer's first training runs, and with it a lease of the size."""
    while not list(folder.rglob("hello-*.json")):
        assert explorer.poll() is None, explorer.communicate()[0]
        time.sleep(0.1)


def ended(*explorers: subprocess.Popen[str]) -> None:
    """Wait for the end of explorers, each of which gives an answer."""
    for explorer in explorers:
        written, _ = explorer.communicate()
        assert explorer.returncode == 0, written[-3000:]


def probes_in(folder: Path) -> list[dict]:
    """Return the probes that the journals below a folder hold."""
    lines = [line for path in sorted(folder.rglob("journal.jsonl")) for line in path.read_text().splitlines()]
    return [json.loads(line)["probe"] for line in lines]


def answer_in(folder: Path) -> int:
    """Return the size that the explorer with the last result below a folder recommends."""
    last = max(folder.rglob("result.json"), key=lambda path: path.stat().st_mtime_ns)
    return json.loads(last.read_text())["micro_batch_size"]


def assert_that_no_size_was_searched_twice(probes: list[dict]) -> None:
    searched = [probe["micro_batch_size"] for probe in probes if probe["purpose"] in SEARCHING]
    assert sorted(searched) == sorted(set(searched))
    assert len({probe["number"] for probe in probes}) == len(probes)


def test_explorers_on_two_hosts_share_a_database_its_probes_and_its_answer(start, tmp_path):
    url = f"sqlite:///{tmp_path}/study.db"
    first = start("host0", "--storage", url, "--model-dir", "0/job")
    wait_for_a_training_in(tmp_path / "0", first)
    second = start("host1", "--storage", url, "--model-dir", "1/job")
    ended(first, second)

    probes = probes_in(tmp_path)
    assert_that_no_size_was_searched_twice(probes)
    assert len(probes_in(tmp_path / "0")) < len(probes) > len(probes_in(tmp_path / "1"))
    assert answer_in(tmp_path) == max(SIZES)
    (study,) = optuna.get_all_study_summaries(url)
    assert study.user_attrs["recommendation"].startswith(f"micro_batch_size {max(SIZES)}:")

    ended(start("host2", "--storage", url, "--model-dir", "2/job"))

    assert probes_in(tmp_path / "2") == []
    assert not list((tmp_path / "2").rglob("probes"))
    assert answer_in(tmp_path / "2") == max(SIZES)


def test_explorers_of_one_model_directory_share_a_run_without_database(start, tmp_path):
    first = start("host0", "--model-dir", "shared/job")
    wait_for_a_training_in(tmp_path, first)
    second = start("host1", "--model-dir", "shared/job")
    ended(first, second)

    assert len(list(tmp_path.rglob("meta.json"))) == 1
    assert_that_no_size_was_searched_twice(probes_in(tmp_path))
    assert answer_in(tmp_path) == max(SIZES)
