"""The speed of the answer as it runs alone beside its speed in the search."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from bexplore.measurement.probe import REAL_STEP, Compilation, Observation
from bexplore.run.facts import Facts
from bexplore.run.parts.program import ProgramPart
from tests.builders import observed

SHARED, EXACT = Compilation.SHARED, Compilation.EXACT


def ran(size: int, pass_time_s: float, compilation: Compilation, **details) -> Observation:
    one = observed(size, pass_times_s=(pass_time_s,) * 3, details=details)
    return dataclasses.replace(one, probe=dataclasses.replace(one.probe, compilation=compilation))


def ratio(observations: list[Observation], command: object = object()) -> float | None:
    """Return the ratio of a result that recommends size 8."""
    best = SimpleNamespace(micro_batch_size=8, speeds=())
    searched = SimpleNamespace(recommendation=best, exact_over_shared=0.5)
    config = SimpleNamespace(command=command)
    facts = Facts(config=config, searched=searched, observations=observations, elapsed_s=1.0)
    return ProgramPart.find(facts).exact_over_shared


@pytest.mark.parametrize(
    ("observations", "expected"),
    [
        ([ran(8, 1.0, SHARED), ran(8, 1.25, EXACT), ran(1, 0.1, SHARED), ran(1, 2.0, EXACT)], 0.8),
        ([ran(8, 1.0, SHARED), ran(8, 0.5, EXACT), ran(8, 1.0, EXACT, **{REAL_STEP: 4})], 2.0),
        ([ran(8, 1.0, EXACT), ran(1, 0.1, SHARED)], None),
    ],
    ids=["of its own size alone", "without checks after the search", "in no start with others"],
)
def test_a_commands_starts_are_compared_at_the_answers_size(observations, expected):
    assert ratio(observations) == (None if expected is None else pytest.approx(expected))


def test_of_a_job_the_search_compares_the_programs():
    assert ratio([ran(8, 1.0, SHARED)], command=None) == 0.5
