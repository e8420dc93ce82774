"""What a worker finds out of a program, and that each bad change is found and named."""

from __future__ import annotations

import dataclasses
import functools
import sys

import pytest

from bexplore.engine.worker.program_metrics import program_metrics
from bexplore.guard import Status, Tier
from bexplore.guard.compare import compare_metrics
from bexplore.job import CompileSettings, Job, Mode, Precision
from bexplore.trace.program_metrics import ProgramMetrics
from tests.builders import ROOT, imported_job

BENCHMARKS = ROOT / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
from guard_jobs import PLANTED  # noqa: E402 - the programs lie beside the benchmark that shares them


def planted_job(change: str = "") -> Job:
    return Job(
        workload="imported",
        model={
            "model": "guard_jobs:build",
            "batch": "guard_jobs:samples",
            "loss": "guard_jobs:loss",
            "arguments": {"change": change},
        },
        precision=Precision.AUTOCAST_BFLOAT16,
        import_root=str(BENCHMARKS),
    )


@functools.cache
def planted_facts(change: str) -> ProgramMetrics:
    return program_metrics(planted_job(change))


@pytest.fixture(scope="module")
def unchanged() -> ProgramMetrics:
    return planted_facts("")


def test_the_facts_of_a_program_are_complete_and_survive_the_file(unchanged):
    assert unchanged.problems == ()
    assert (unchanged.num_graphs, unchanged.num_graph_breaks, unchanged.num_recompiles) == (1, 0, 0)
    assert unchanged.num_parameters and unchanged.flops and unchanged.num_saved_activations and unchanged.num_kernels
    assert any(item.label.startswith("addmm bfloat16[b, 256]") for item in unchanged.saved_activations)
    assert all(item.where == "" or ".py:" in item.where for item in unchanged.operators)
    assert ProgramMetrics.from_record(unchanged.as_record()) == unchanged


def test_the_same_program_gives_the_same_facts_again(unchanged):
    assert program_metrics(planted_job()) == unchanged


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.change)
def test_a_planted_change_is_found_and_named(unchanged, planted):
    after = planted_facts(planted.change)

    tiers = {Tier.ANY_MACHINE: "", Tier.SAME_TOOLCHAIN: ""}
    found = {one.name: one for one in compare_metrics(unchanged, after, tiers=tiers).findings}

    assert found[planted.fact].status is Status.WORSE
    assert any(planted.says in line for line in found[planted.fact].details), found[planted.fact].details


def test_values_read_in_a_loop_are_graph_breaks_with_their_line():
    before = program_metrics(imported_job("perceptron", backend="inductor"))
    after = program_metrics(imported_job("reads_in_loop", backend="inductor"))

    tiers = {Tier.ANY_MACHINE: "", Tier.SAME_TOOLCHAIN: ""}
    comparison = compare_metrics(before, after, tiers=tiers)
    found = {one.name: one for one in comparison.findings}

    assert after.problems == ()
    assert (before.num_graph_breaks, before.num_eager_operators) == (0, 0)
    assert (found["num_graph_breaks"].before, found["num_graph_breaks"].after) == ("0", "1")
    assert found["num_graph_breaks"].where.startswith("programs.py:")
    assert found["num_eager_operators"].status is Status.WORSE
    assert any(line.startswith("new: addmm (2 times) at programs.py:") for line in found["num_eager_operators"].details)
    assert {one.status for name, one in found.items() if name != "phases"} <= {Status.SAME, Status.WORSE}
    assert "kernels after fusion" in [one.title for one in comparison.not_compared]


def test_a_program_that_fixes_its_batch_names_the_line_that_does():
    fixed = planted_facts("recompile").fixed_sizes

    assert any("len(range(x.shape[0]))" in item.label and item.where.startswith("guard_jobs.py:") for item in fixed)


def test_an_eager_job_has_parameters_and_memory_but_no_graphs():
    facts = program_metrics(imported_job(compile=CompileSettings(enabled=False)))

    assert facts.num_parameters == 32 * 32 + 32 + 32 * 4 + 4
    assert facts.peak_memory_bytes(8)
    assert facts.num_graphs is None
    assert facts.num_kernels is None


def test_an_evaluation_saves_no_activation():
    facts = program_metrics(dataclasses.replace(imported_job(), mode=Mode.EVAL))

    assert facts.num_saved_activations == 0
    assert facts.num_graphs == 1


def test_a_broken_program_is_a_problem_with_its_line_and_no_exception():
    facts = program_metrics(imported_job("shape_error"))

    assert facts.num_parameters is None
    assert any("programs.py:" in line for line in facts.problems)
