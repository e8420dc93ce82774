"""The guard's judgement: facts by tier, verdicts, baselines, sinks. No worker and no torch here."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from bexplore.errors import ExitCode
from bexplore.guard import Finding, Report, Status, Tier, Verdict
from bexplore.guard.compare import compare_metrics
from bexplore.guard.report import NotCompared
from bexplore.guard.sizes import check_still_wins, compare_speedups, compare_with_other_day
from bexplore.output.guard_report import guard_table
from bexplore.trace.program_metrics import Item, ProgramMetrics
from tests.unit.guard.builders import baseline, facts, report_of, worker

BOTH = {Tier.ANY_MACHINE: "", Tier.SAME_TOOLCHAIN: ""}


def changed(after: ProgramMetrics, **options) -> dict[str, Finding]:
    found = compare_metrics(facts(), after, tiers=BOTH, **options).findings
    return {one.name: one for one in found if one.status is not Status.SAME}


def test_equal_facts_give_no_finding_but_sameness():
    assert changed(facts()) == {}


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"num_parameters": 1001}, {"num_parameters"}),
        ({"flops": (0, 5060, 0)}, {"flops"}),
        ({"num_graphs": 2}, {"num_graphs"}),
        ({"num_saved_activations": 3}, {"num_saved_activations"}),
        ({"saved_activation_bytes": (8, 520, 0)}, {"saved_activation_bytes"}),
        ({"num_recompiles": 1}, {"num_recompiles"}),
        ({"num_fixed_sizes": 1}, {"num_fixed_sizes"}),
        ({"phases": {"update": ((9200, 10, 0),)}}, {"phases"}),
    ],
)
def test_growth_beyond_the_tolerance_is_worse(change, names):
    found = changed(facts(**change))

    assert set(found) == names
    assert all(one.status is Status.WORSE for one in found.values())


def test_bytes_within_1_percent_are_equal_and_counts_have_no_tolerance():
    assert changed(facts(flops=(0, 5040, 0), saved_activation_bytes=(8, 514, 0))) == {}
    assert set(changed(facts(num_parameters=1001))) == {"num_parameters"}


def test_shrinking_is_better_and_asks_for_a_new_baseline():
    found = changed(facts(num_kernels=1, kernels=(Item(label="add+mm+mul"),)))

    assert found["num_kernels"].status is Status.BETTER
    assert Report(config="c", reference="r", findings=tuple(found.values())).verdict is Verdict.STALE_BASELINE


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_fact_that_is_not_a_number_is_a_regression(value):
    assert changed(facts(flops=(0, value, 0)))["flops"].status is Status.WORSE


def test_a_new_graph_break_is_named_with_file_and_line():
    broken = facts(num_graph_breaks=1, graph_breaks=(Item(label="Call to print", where="model.py:12"),))

    found = changed(broken)["num_graph_breaks"]

    assert found.details == ("new: Call to print at model.py:12",)
    assert found.where == "model.py:12"


def test_another_break_of_a_known_reason_is_named_with_its_own_line():
    known = facts(num_graph_breaks=1, graph_breaks=(Item(label="Call to print", where="model.py:12"),))
    more = Item(label="Call to print", count=2, where="model.py:12, model.py:40")

    (found,) = [
        one
        for one in compare_metrics(known, facts(num_graph_breaks=2, graph_breaks=(more,)), tiers=BOTH).findings
        if one.name == "num_graph_breaks"
    ]

    assert (found.details, found.where) == (("new: Call to print at model.py:40",), "model.py:40")


@pytest.mark.parametrize(("num_before", "num_after"), [(0, 7), (7, 0)])
def test_graphs_of_another_part_of_the_program_are_not_compared(num_before, num_after):
    whole = {"num_kernels": 2, "num_saved_activations": 2, "largest_buffer_bytes": (0, 256, 0)}
    part = {"num_kernels": 1, "num_saved_activations": 1, "largest_buffer_bytes": (0, 128, 0)}
    before, after = (facts(num_eager_operators=n, **(part if n else whole)) for n in (num_before, num_after))

    comparison = compare_metrics(before, after, tiers=BOTH)

    status = Status.WORSE if num_after else Status.BETTER
    assert {one.name: one.status for one in comparison.findings if one.status is not Status.SAME} == {
        "num_eager_operators": status
    }
    told = {one.title: one.reason for one in comparison.not_compared}
    assert {"kernels after fusion", "saved activations", "largest buffer", "graphs"} <= set(told)
    assert f"{num_before} operators lay outside of graphs, and {num_after} do now" in told["kernels after fusion"]


def test_the_table_gives_each_reason_once():
    missing = tuple(NotCompared(title=title, reason="another part") for title in ("graphs", "kernels"))

    text = guard_table(dataclasses.replace(report_of(Status.WORSE), not_compared=missing))

    assert "not compared: graphs, kernels: another part" in text


def test_a_lost_fusion_is_named_with_the_kernels_it_fell_into():
    split = facts(num_kernels=3, kernels=(Item(label="add"), Item(label="mul", where="model.py:7"), Item(label="mm")))

    details = changed(split)["num_kernels"].details

    assert "lost fusion: add+mul at model.py:7" in details
    assert "new kernel: mul at model.py:7" in details


def test_other_operators_with_the_same_numbers_are_a_change():
    other = facts(operators=(Item(label="div float32[b, 64]", count=2, where="model.py:8"),))

    found = changed(other)

    assert found["operators"].status is Status.CHANGED
    assert "new: div float32[b, 64] (2 times) at model.py:8" in found["operators"].details


def test_a_line_that_moved_is_no_change():
    moved = facts(kernels=(Item(label="add+mul", where="model.py:70"), Item(label="mm", where="model.py:90")))

    assert changed(moved) == {}


def test_a_program_no_longer_traceable_is_one_regression_and_says_where():
    gone = ProgramMetrics(traced_device="cpu", problems=("the program cannot be traced: shape is wrong (model.py:9)",))

    comparison = compare_metrics(facts(), gone, tiers=BOTH)

    (found,) = comparison.findings
    assert (found.status, found.where) == (Status.WORSE, "model.py:9")
    assert comparison.not_compared[0] == NotCompared(title="parameters", reason="cannot be found any more")


def test_a_tier_that_cannot_be_compared_is_listed_with_its_reason():
    tiers = {Tier.ANY_MACHINE: "", Tier.SAME_TOOLCHAIN: "capability AVX2 -> AVX512"}

    comparison = compare_metrics(facts(), facts(num_kernels=99), tiers=tiers)

    assert all(one.status is Status.SAME for one in comparison.findings)
    assert NotCompared(title="kernels after fusion", reason="capability AVX2 -> AVX512") in comparison.not_compared


def test_what_the_baseline_does_not_have_is_listed_and_not_blamed():
    comparison = compare_metrics(facts(num_recompiles=None), facts(num_recompiles=4), tiers=BOTH)

    assert [one.title for one in comparison.not_compared] == ["recompilations across sizes"]


def test_a_smaller_largest_size_is_worse_and_a_larger_one_better():
    budget = 64_000
    assert facts().max_micro_batch_size(budget) == 60
    assert (
        changed(facts(phases={"forward": ((4000, 1100, 0),)}), memory_budget_bytes=budget)[
            "max_micro_batch_size"
        ].status
        is Status.WORSE
    )


@pytest.mark.parametrize(
    ("report", "verdict", "code"),
    [
        (report_of(Status.SAME), Verdict.UNCHANGED, 0),
        (report_of(Status.SAME, Status.BETTER, Status.WORSE), Verdict.REGRESSION, 1),
        (report_of(), Verdict.NOTHING_MEASURED, 1),
        (report_of(Status.BETTER), Verdict.STALE_BASELINE, 5),
        (report_of(Status.CHANGED), Verdict.STALE_BASELINE, 5),
        (report_of(Status.UNSURE), Verdict.INCONCLUSIVE, 5),
        (report_of(Status.WORSE, toolchain_changes=("torch 2.11 -> 2.13",)), Verdict.TOOLCHAIN_CHANGED, 5),
        (report_of(Status.SAME, toolchain_changes=("torch 2.11 -> 2.13",)), Verdict.TOOLCHAIN_CHANGED, 5),
        (
            report_of(Status.WORSE, tier=Tier.SAME_JOB, toolchain_changes=("torch 2.11 -> 2.13",)),
            Verdict.REGRESSION,
            1,
        ),
    ],
)
def test_every_outcome_has_its_verdict_and_exit_code(report, verdict, code):
    assert report.verdict is verdict
    assert report.exit_code == ExitCode(code)


def test_a_loss_that_is_not_a_number_is_a_regression_of_the_times():
    (found,) = check_still_wins([worker(s8=10.0, s16=math.nan)], 8, 0.03)
    assert found.status is Status.WORSE


def test_the_speed_relative_to_the_base_carries_over_to_a_slower_machine():
    before = baseline(times=(worker(s1=10.0, s8=20.0), worker(s1=10.1, s8=20.1), worker(s1=10.0, s8=20.2)))
    slower_machine = [worker(s1=30.0, s8=60.1), worker(s1=30.2, s8=60.2), worker(s1=30.1, s8=60.5)]
    worse_ratio = [worker(s1=30.0, s8=70.0), worker(s1=30.2, s8=70.2), worker(s1=30.1, s8=70.1)]

    (fine,) = compare_speedups(before, slower_machine, 8, 1, 0.03)
    (worse,) = compare_speedups(before, worse_ratio, 8, 1, 0.03)

    assert fine.status is Status.SAME
    assert worse.status is Status.WORSE


def test_times_of_the_same_machine_are_compared_with_their_noise():
    before = baseline(times=(worker(s8=20.0), worker(s8=20.1), worker(s8=19.9)))

    slower = compare_with_other_day(before, [worker(s8=24.0), worker(s8=24.2), worker(s8=24.1)], 8, 0.03)
    noisy = compare_with_other_day(before, [worker(s8=18.0), worker(s8=24.2), worker(s8=21.0)], 8, 0.03)

    assert {one.status for one in slower} == {Status.WORSE}
    assert {one.status for one in noisy} == {Status.UNSURE}


def test_the_table_says_verdict_changes_and_what_was_not_compared():
    text = guard_table(
        dataclasses.replace(
            report_of(Status.WORSE, Status.SAME), not_compared=(NotCompared(title="times", reason="other machine"),)
        )
    )

    assert "REGRESSION" in text.splitlines()[0]
    assert "not compared: times: other machine" in text
    assert "2 facts compared, 1 the same" in text


def test_the_json_event_has_the_verdict_and_every_finding():
    event = json.loads(json.dumps(report_of(Status.WORSE).as_record()))

    assert (event["event"], event["verdict"], event["exit_code"]) == ("guard", "regression", 1)
    assert event["findings"][0]["status"] == "worse"


def test_a_kernel_that_stays_is_no_change_beside_one_that_comes():
    more = facts(kernels=(*facts().kernels, Item(label="new", where="model.py:11")))

    assert changed(more)["kernels"].details == ("new kernel: new at model.py:11",)
