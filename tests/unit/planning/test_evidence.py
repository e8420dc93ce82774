"""What `bexplore network` has timed is used where it lies beside the run."""

from __future__ import annotations

import dataclasses
import json

import pytest

from bexplore.host.records import from_record
from bexplore.job import Job, Parallelism
from bexplore.measurement.profile import ProfiledCollective
from bexplore.output.report.report_data import read_report_data
from bexplore.planning.evidence import find_network_evidence
from bexplore.planning.network import FILE_NAME, Link
from bexplore.planning.sources import read_costs
from tests.unit.planning.builders import timed_network
from tests.unit.run.builders import make_run

SPEED = 1e9  # bytes/s of bus bandwidth


def collective(name: str, num_bytes: int, **fields) -> ProfiledCollective:
    return ProfiledCollective(
        **{"name": name, "num_bytes": num_bytes, "num_calls": 1, "is_part": False, "self_s": 1.0} | fields
    )


@pytest.fixture
def run(tmp_path):
    """A run of two replicas with a timed network beside it."""
    run = make_run(tmp_path)
    meta = run.meta()
    job = dataclasses.replace(from_record(Job, meta["job"]), parallelism=Parallelism(data_parallel_replicate_degree=2))
    (run.directory / "meta.json").write_text(json.dumps(meta | {"job": job.as_record(), "batch_size": 64}))
    links = (Link.from_rounds((0, 1), ("a", "a"), [1e9] * 3), Link.from_rounds((1, 0), ("a", "a"), [3e9] * 3))
    figures = dataclasses.replace(timed_network({1: SPEED, 2**30: SPEED}), links=links, slow=("rank 1 is slow",))
    (run.directory / FILE_NAME).write_text(json.dumps(dataclasses.asdict(figures)))
    return run


def test_the_network_beside_a_run_gives_its_slow_parts_with_speeds(run):
    found = find_network_evidence(run)
    assert found.slow == ("rank 1 is slow",)
    assert found.speeds == {"slowest_link_bytes_per_s": 1e9, "median_link_bytes_per_s": 3e9}
    assert any("rank 1 is slow" in one.finding for one in read_report_data(run).bottlenecks)


def test_it_explains_what_its_bandwidth_takes_for_profiled_collectives(run):
    found = find_network_evidence(run)
    assert found.seconds(collective("all_reduce", 2**20, num_calls=3)) == pytest.approx(3 * 2**20 / SPEED)
    assert found.seconds(collective("all_gather", 2**20, is_part=True)) is None  # this one was not timed


def test_it_explains_the_mean_pass_of_a_step_by_the_bytes_of_the_gradients(run):
    assert find_network_evidence(run).explained_s == pytest.approx(read_costs(run).gradient_bytes / SPEED)


def test_without_a_whole_file_beside_the_run_nothing_is_said(run):
    (run.directory / FILE_NAME).write_text("{}")
    assert find_network_evidence(run) is None
    (run.directory / FILE_NAME).unlink()
    assert find_network_evidence(run) is None
