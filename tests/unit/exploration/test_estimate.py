"""The expected length of an exploration: by earlier runs of the same machine, or unknown and why."""

from __future__ import annotations

import dataclasses

import pytest

from bexplore.exploration.estimate import estimate_duration
from bexplore.trace.cost_model import Polynomial
from tests.unit.run.builders import cost_model, make_run

MACHINE = {"torch": "2.13.0", "processor": None, "accelerator": None, "threads": None}
PROBES_S, PASSES_S = 12.0, 0.04 + 0.07 + 3 * 8 / 410 + 0.01  # of the run that is on disk


def expected(folder, *, flops: float = 1.5e12, max_probes: int = 4, environment: dict | None = None):
    model = dataclasses.replace(cost_model(), hardware_flops=Polynomial(0, flops))
    return estimate_duration(folder / "mine", environment or MACHINE, model, max_probes=max_probes)


@pytest.mark.parametrize(
    ("flops", "max_probes", "seconds"),
    [
        (1.5e12, 4, PROBES_S),
        (1.5e12, 40, PROBES_S),
        (1.5e12, 2, PROBES_S / 2),
        (6e12, 4, PROBES_S + 3 * PASSES_S),
    ],
)
def test_an_earlier_run_is_scaled_in_its_passes_alone(tmp_path, flops, max_probes, seconds):
    run = make_run(tmp_path / "earlier")

    estimate = expected(tmp_path, flops=flops, max_probes=max_probes)

    assert estimate.seconds == pytest.approx(seconds)
    assert estimate.why.startswith(f"by {run.directory}")


def test_nothing_is_expected_of_another_machine_another_kind_of_job_or_an_unfinished_run(tmp_path):
    make_run(tmp_path / "unfinished", finished=False)
    assert expected(tmp_path).why == f"no finished run of this machine under {tmp_path}"
    make_run(tmp_path / "earlier")
    for estimate, why in (
        (expected(tmp_path, environment=MACHINE | {"processor": "another"}), "no finished run of this machine"),
        (expected(tmp_path, flops=1e14), "the nearest run of this machine is"),
        (estimate_duration(tmp_path / "mine", MACHINE, None, max_probes=4), "the job has no trace"),
    ):
        assert estimate.seconds is None
        assert estimate.why.startswith(why)
