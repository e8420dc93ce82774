"""What a reader must know of the program that was measured: how often it was compiled, and why."""

from __future__ import annotations

import dataclasses

import pytest

from bexplore.measurement.probe import Compilation, Probe
from bexplore.search.result import program_warnings, samples_are_seen
from tests.builders import observed


def test_compilations_beyond_the_first_are_counted_charged_and_explained():
    reason = "size of x changed (model.py:7)"
    again = {"num_graphs": 1, "num_recompiles": 1, "compile_time_s": 15.0, "details": {"recompile_reasons": (reason,)}}
    observations = [observed(1, num_graphs=1, compile_time_s=20.0), observed(2, **again), observed(8, **again)]

    (warning,) = program_warnings(observations)

    assert warning == f"the search compiled again in 2 of 3 probes, 30.0 s in all: {reason}"


def test_a_program_for_each_size_is_told_too():
    static = {"num_graphs": 1, "compile_time_s": 5.0, "details": {"shared_mode": "static"}}

    (warning,) = program_warnings([observed(size, **static) for size in (1, 2, 4)])

    assert "in 2 of 3 probes, 10.0 s" in warning
    assert "could not be compiled once for every size" in warning


DYNAMIC = {"shared_mode": "dynamic"}


@pytest.mark.parametrize("sizes", [(1, 8, 4, 1), (8, 1, 4)])
def test_the_program_of_one_sample_beside_the_shared_is_nothing_to_tell(sizes):
    first, second, *later = (observed(size, worker=1, details=DYNAMIC) for size in sizes)
    first = dataclasses.replace(first, num_graphs=1, num_recompiles=0)
    second = dataclasses.replace(second, num_graphs=1, num_recompiles=1, compile_time_s=9.0)

    assert program_warnings([first, second, *later]) == ()


def test_a_third_program_is_told_whether_or_not_it_was_compiled_ahead():
    reason = "51463168*samples <= 2147483647"
    again = {"num_graphs": 1, "num_recompiles": 1, "compile_time_s": 9.0, "worker": 1}
    one, third = (observed(size, details=DYNAMIC | {"recompile_reasons": (reason,)}, **again) for size in (1, 64))

    (warning,) = program_warnings([one, observed(8, worker=1, details=DYNAMIC), third])
    (of_ahead,) = program_warnings([one, third])

    assert warning == f"the search compiled again in 1 of 3 probes, 9.00 s in all: {reason}"
    assert "in 1 of 2 probes" in of_ahead


def test_one_shared_compilation_and_the_answers_are_nothing_to_tell():
    shared = [observed(1, num_graphs=1, compile_time_s=20.0), observed(2), observed(4)]
    probe = Probe(number=3, micro_batch_size=4, compilation=Compilation.EXACT)
    exact = dataclasses.replace(observed(4, num_graphs=1, num_recompiles=1, compile_time_s=9.0), probe=probe)

    assert program_warnings([*shared, exact]) == ()


def test_samples_that_could_not_be_counted_are_told():
    seen, unseen = observed(1, details={"samples_are_seen": True}), observed(2, details={"samples_are_seen": False})

    assert samples_are_seen([seen, unseen]) is False
    assert samples_are_seen([seen, observed(4)]) is True
    assert samples_are_seen([observed(4)]) is None
    assert program_warnings([seen]) == ()
    (warning,) = program_warnings([seen, unseen])
    assert "no size was checked" in warning
