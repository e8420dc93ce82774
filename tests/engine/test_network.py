from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from bexplore.estimate.collectives import Collective
from bexplore.planning.network import RUNS_INSTEAD, NetworkFigures
from tests.builders import ROOT
from tests.jobs.network_reckoning import NUM_BYTES

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ANY_LOAD = 10  # factor between two timings of the same on a machine that other programs use, too


def run(*command: str, cwd: Path = ROOT, **further: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **further}
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
    assert sum(line.startswith("all_reduce ") for line in text.splitlines()) == 2


def test_what_gloo_sends_beside_the_counted_bytes_is_kept_and_printed(timed):
    figures, _, text = timed
    (note,) = figures.notes
    assert "gloo runs all_reduce for reduce_scatter: each rank sends 1 times the tensor" in note
    assert f"note: {note}" in text


@pytest.fixture(scope="module", params=[2, 3], ids=lambda number: f"{number} ranks")
def reckoned(request) -> tuple[int, dict[str, dict[str, float]]]:
    """A number of ranks, and what they reckon on their own."""
    done = run(*TORCHRUN[:-1], str(request.param), "-m", "tests.jobs.network_reckoning")
    assert done.returncode == 0, done.stderr
    return request.param, json.loads(done.stdout)


def gloo_share(collective: Collective, num_ranks: int) -> float:
    """Bytes that each rank sends over those of the tensor, by what gloo runs."""
    return RUNS_INSTEAD.get(("gloo", collective), collective).sent_share(num_ranks)


def test_the_bytes_that_each_rank_sends_are_those_that_the_kernel_counts(reckoned):
    num_ranks, found = reckoned
    assert set(found) == set(Collective)
    for name, one in found.items():
        assert one["sent_bytes"] == pytest.approx(gloo_share(Collective(name), num_ranks) * NUM_BYTES, rel=0.05), name


def test_the_bus_bandwidth_is_bytes_on_the_wire_over_another_clock(reckoned):
    num_ranks, found = reckoned
    for name, one in found.items():
        collective = Collective(name)
        counted_share = collective.sent_share(num_ranks) / gloo_share(collective, num_ranks)
        expected = counted_share * one["sent_bytes"] / one["seconds"]
        assert expected / ANY_LOAD < one["bus_bytes_per_s"] < expected * ANY_LOAD, name


def test_a_process_that_no_launcher_started_says_what_to_type():
    done = run(sys.executable, "-m", "bexplore", "network")
    assert done.returncode == 2
    assert "torchrun --nproc-per-node 2 -m bexplore network" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_that_is_missing_is_made_before_anything_is_timed(tmp_path):
    done = run(*TORCHRUN, "-m", "bexplore", "network", "--max-size", "1MiB", "-o", "new/net.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert NetworkFigures.read(tmp_path / "new" / "net.json").timed


BAD_WISHES = {
    "a file below a file": (("-o", "file/net.json"), {}, "cannot make the folder file"),
    "a folder as the file": (("-o", "."), {}, "cannot write ."),
    "a smallest size above the largest": (("--min-size", "2MiB", "--max-size", "1MiB"), {}, "is above --max-size 1MiB"),
    "a number of ranks that is none": ((), {"WORLD_SIZE": "abc"}, "WORLD_SIZE=abc"),
    "a rank that is none": ((), {"RANK": "x"}, "RANK=x"),
    "one rank": ((), {"WORLD_SIZE": "1"}, "at least two ranks"),
}


@pytest.mark.parametrize(("arguments", "environment", "said"), BAD_WISHES.values(), ids=BAD_WISHES)
def test_what_cannot_be_timed_or_written_is_an_error_before_it_runs(tmp_path, arguments, environment, said):
    (tmp_path / "file").touch()
    told = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", **environment}
    done = run(sys.executable, "-m", "bexplore", "network", *arguments, cwd=tmp_path, **told)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
