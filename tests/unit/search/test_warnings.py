"""What a reader must know of the program that was measured: how often it was compiled, and why."""

from __future__ import annotations

import dataclasses

from bexplore.measurement.probe import Compilation, Probe
from bexplore.search.warnings import program_warnings, samples_are_seen
from tests.builders import observed


def test_compilations_of_the_search_beyond_the_first_are_counted_charged_and_explained():
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


def test_one_compilation_for_all_sizes_and_that_of_the_answer_are_nothing_to_tell():
    shared = [observed(1, num_graphs=1, compile_time_s=20.0), observed(2), observed(4)]
    probe = Probe(number=3, micro_batch_size=4, compilation=Compilation.EXACT)
    exact = dataclasses.replace(observed(4, num_graphs=1, num_recompiles=1, compile_time_s=9.0), probe=probe)

    assert program_warnings([*shared, exact]) == ()


def test_samples_that_could_not_be_counted_are_told_and_what_says_nothing_of_them_is_not():
    seen, unseen = observed(1, details={"samples_are_seen": True}), observed(2, details={"samples_are_seen": False})

    assert samples_are_seen([seen, unseen]) is False
    assert samples_are_seen([seen, observed(4)]) is True
    assert samples_are_seen([observed(4)]) is None
    assert program_warnings([seen]) == ()
    (warning,) = program_warnings([seen, unseen])
    assert "no size was checked" in warning
