from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from bexplore.planning.network_figures import Collective, NetworkFigures
from tests.builders import ROOT
from tests.jobs.network_reckoning import NUM_BYTES

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def timed(tmp_path_factory) -> tuple[NetworkFigures, dict, str]:
    """What two ranks of gloo wrote."""
    folder = tmp_path_factory.mktemp("network")
    done = run(*TORCHRUN, "-m", "bexplore", "network", "--max-size", "2MiB", "-o", "found.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return NetworkFigures.read(folder / "found.json"), json.loads((folder / "found.json").read_text()), done.stdout


def test_every_collective_is_timed_at_every_size(timed):
    figures, _, _ = timed
    assert (figures.num_ranks, figures.num_hosts, figures.backend) == (2, 1, "gloo")
    assert {(one.collective, one.num_bytes) for one in figures.timed} == {
        (collective, size * 2**20) for collective in Collective for size in (1, 2)
    }


def test_the_bandwidths_of_the_file_are_its_bytes_over_its_raw_times(timed):
    _, record, _ = timed
    sent = {"all_reduce": 1.0, "reduce_scatter": 0.5, "all_gather": 0.5}  # of the tensor, by each of two ranks
    for one in record["timed"]:
        median_s = statistics.median(one["times_s"])
        assert one["algorithm_bytes_per_s"] == pytest.approx(one["num_bytes"] / median_s)
        assert one["bus_bytes_per_s"] == pytest.approx(sent[one["collective"]] * one["num_bytes"] / median_s)


def test_the_ring_has_a_link_from_each_rank_to_the_next(timed):
    figures, _, _ = timed
    assert [link.ranks for link in figures.links] == [(0, 1), (1, 0)]
    assert all(link.bytes_per_s > 0 for link in figures.links)


def test_only_the_first_rank_prints(timed):
    _, _, text = timed
    assert text.count("all_reduce") == 2


def test_the_bytes_that_each_rank_sends_are_those_that_the_kernel_counts():
    done = run(*TORCHRUN, "-m", "tests.jobs.network_reckoning")
    assert done.returncode == 0, done.stderr
    for name, sent_bytes in json.loads(done.stdout).items():
        assert sent_bytes == pytest.approx(Collective(name).sent_share(2) * NUM_BYTES, rel=0.05), name


def test_a_process_that_no_launcher_started_says_what_to_type():
    done = run(sys.executable, "-m", "bexplore", "network")
    assert done.returncode == 2
    assert "torchrun --nproc-per-node 2 -m bexplore network" in done.stderr
    assert "Traceback" not in done.stderr
