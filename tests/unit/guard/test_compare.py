"""The guard's judgement: facts by tier, verdicts, baselines, sinks. No worker and no torch here."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from bexplore.errors import EngineError, ExitCode, UserInputError
from bexplore.guard import Baseline, Finding, Report, Status, Tier, Verdict, read_baseline, write_baseline
from bexplore.guard.baseline import SizeTimes
from bexplore.guard.compare import compare_metrics
from bexplore.guard.neighbour_sizes import relative_performance, sizes_around, still_wins, times_of_another_day
from bexplore.guard.report import NotCompared
from bexplore.output.guard_ci import append_step_summary, github_annotations, write_junit
from bexplore.output.guard_table import guard_table
from bexplore.trace.program_metrics import Item, ProgramMetrics

BOTH = {Tier.ANY_MACHINE: "", Tier.SAME_TOOLCHAIN: ""}


def facts(**changes) -> ProgramMetrics:
    values = {
        "traced_device": "cpu",
        "num_parameters": 1000,
        "flops": (0, 5000, 0),
        "num_graphs": 1,
        "num_graph_breaks": 0,
        "num_eager_operators": 0,
        "num_fixed_sizes": 0,
        "num_saved_activations": 2,
        "saved_activation_bytes": (8, 512, 0),
        "saved_activations": (Item(label="mul float32[b, 64]", where="model.py:7"), Item(label="input float32[b, 64]")),
        "largest_buffer_bytes": (0, 256, 0),
        "largest_buffers": (Item(label="mul float32[b, 64]", where="model.py:7"),),
        "operators": (Item(label="mul float32[b, 64]", count=2, where="model.py:7"),),
        "phases": {"forward": ((4000, 1000, 0),), "update": ((9000, 10, 0),)},
        "num_kernels": 2,
        "kernels": (Item(label="add+mul", where="model.py:7"), Item(label="mm", where="model.py:9")),
        "num_recompiles": 0,
    }
    return ProgramMetrics(**values | changes)


def baseline(**changes) -> Baseline:
    values = {
        "config": "job.yaml",
        "job": {"model": {"hidden_size": 64}},
        "job_fingerprint": "0123456789abcdef",
        "toolchain": {"torch": "2.13.0"},
        "machine": {"device": "cpu"},
        "any_device": facts(),
    }
    return Baseline(**values | changes)


def changed(after: ProgramMetrics, **options) -> dict[str, Finding]:
    found = compare_metrics(facts(), after, tiers=BOTH, **options).findings
    return {one.name: one for one in found if one.status is not Status.SAME}


def report_of(*statuses: Status, tier: Tier = Tier.ANY_MACHINE, **fields) -> Report:
    findings = tuple(Finding(name="f", title="fact", tier=tier, status=status, where="m.py:3") for status in statuses)
    return Report(config="job.yaml", reference="job.guard.json", findings=findings, **fields)


def worker(**pass_times_ms: float) -> tuple[SizeTimes, ...]:
    """`worker(s4=10.0, s8=15.0)`: one worker process with passes of these lengths."""
    return tuple(
        SizeTimes(micro_batch_size=int(name[1:]), pass_times_s=(ms / 1e3,) * 3, cpu_time_s=3 * ms / 1e3)
        for name, ms in pass_times_ms.items()
    )


def test_the_guard_judges_without_importing_torch():
    code = "import sys, bexplore.guard.guard, bexplore.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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


def test_bytes_within_one_percent_are_the_same_and_counts_have_no_tolerance():
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


def test_a_program_that_cannot_be_traced_any_more_is_one_regression_and_says_where():
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


def test_a_baseline_is_read_as_it_was_written_and_is_readable(tmp_path):
    path = tmp_path / "job.guard.json"
    written = baseline(
        any_device=facts(graph_breaks=(Item(label="Call to print", count=2, where="model.py:12"),)),
        times=(worker(s4=10.0, s8=15.0), worker(s4=11.0)),
        recommended_micro_batch_size=8,
    )

    write_baseline(path, written)

    assert read_baseline(path) == written
    assert '"Call to print": "2 model.py:12"' in path.read_text()
    assert '"flops": [0, 5000, 0]' in path.read_text()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "cannot read"),
        ("{", "is not JSON"),
        ("[]", "is not a baseline"),
        ('{"any_device": {}, "format_version": 99}', "format version 99"),
        ('{"any_device": {}, "format_version": 1}', "damaged"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_a_file_that_is_no_baseline_is_the_users_input(tmp_path, text, told):
    path = tmp_path / "job.guard.json"
    if text is not None:
        path.write_text(text)

    with pytest.raises(UserInputError, match=told) as raised:
        read_baseline(path)
    assert "--update" in raised.value.hint


@pytest.mark.parametrize(
    "damage",
    [
        {"recommended_micro_batch_size": "eight"},
        {"toolchain": 3},
        {"times": [[{"micro_batch_size": 4, "pass_times_s": [], "cpu_time_s": 1}]]},
        {"any_device": {"traced_device": "cpu", "num_parameters": "many"}},
        {"any_device": {"traced_device": "cpu", "flops": [1, 2]}},
        {"any_device": {"traced_device": "cpu", "kernels": {"mm": "several"}}},
    ],
)
def test_a_damaged_value_is_told_when_the_file_is_read(tmp_path, damage):
    path = tmp_path / "job.guard.json"
    path.write_text(json.dumps(baseline().as_dict() | damage))

    with pytest.raises(UserInputError, match="damaged"):
        read_baseline(path)


def test_a_baseline_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match="cannot write"):
        write_baseline(tmp_path / "file" / "job.guard.json", baseline())


def test_the_sizes_around_the_recommended_one_stay_within_what_fits():
    assert sizes_around(16, 1, maximum=None, fits=None) == (1, 8, 16, 32)
    assert sizes_around(16, 1, maximum=None, fits=20) == (1, 8, 16)
    assert sizes_around(1, None, maximum=64, fits=None) == (1, 2)


def test_the_recommended_size_wins_until_a_neighbour_is_clearly_faster():
    level = [worker(s8=10.0, s16=19.9), worker(s8=10.1, s16=20.0), worker(s8=10.0, s16=20.1)]
    beaten = [worker(s8=10.0, s16=17.0), worker(s8=10.1, s16=17.2), worker(s8=10.0, s16=17.1)]

    (fine,) = still_wins(level, 8, 0.03)
    (stale,) = still_wins(beaten, 8, 0.03)

    assert fine.status is Status.SAME
    assert (stale.status, stale.after) == (Status.CHANGED, "16")


def test_a_neighbour_that_wins_by_the_scheduler_alone_is_unsure():
    short, long = SizeTimes(micro_batch_size=8, pass_times_s=(0.010,), cpu_time_s=0.010), 0.030
    times = [(short, SizeTimes(micro_batch_size=16, pass_times_s=(long,), cpu_time_s=0.020))] * 3

    (quiet,) = still_wins(times, 16, 0.03)
    (busy,) = still_wins(times, 16, 0.03, is_busy=True)

    assert (quiet.status, busy.status) == (Status.CHANGED, Status.UNSURE)


def test_a_loss_that_is_not_a_number_is_a_regression_of_the_times():
    (found,) = still_wins([worker(s8=10.0, s16=math.nan)], 8, 0.03)
    assert found.status is Status.WORSE


def test_the_speed_relative_to_the_base_carries_over_to_a_slower_machine():
    before = baseline(times=(worker(s1=10.0, s8=20.0), worker(s1=10.1, s8=20.1), worker(s1=10.0, s8=20.2)))
    slower_machine = [worker(s1=30.0, s8=60.1), worker(s1=30.2, s8=60.2), worker(s1=30.1, s8=60.5)]
    worse_ratio = [worker(s1=30.0, s8=70.0), worker(s1=30.2, s8=70.2), worker(s1=30.1, s8=70.1)]

    (fine,) = relative_performance(before, slower_machine, 8, 1, 0.03)
    (worse,) = relative_performance(before, worse_ratio, 8, 1, 0.03)

    assert fine.status is Status.SAME
    assert worse.status is Status.WORSE


def test_times_of_the_same_machine_are_compared_with_their_noise():
    before = baseline(times=(worker(s8=20.0), worker(s8=20.1), worker(s8=19.9)))

    slower = times_of_another_day(before, [worker(s8=24.0), worker(s8=24.2), worker(s8=24.1)], 8, 0.03)
    noisy = times_of_another_day(before, [worker(s8=18.0), worker(s8=24.2), worker(s8=21.0)], 8, 0.03)

    assert {one.status for one in slower} == {Status.WORSE}
    assert {one.status for one in noisy} == {Status.UNSURE}


def test_the_table_says_the_verdict_what_changed_and_what_could_not_be_compared():
    text = guard_table(
        dataclasses.replace(
            report_of(Status.WORSE, Status.SAME), not_compared=(NotCompared(title="times", reason="other machine"),)
        )
    )

    assert "REGRESSION" in text.splitlines()[0]
    assert "not compared: times: other machine" in text
    assert "2 facts compared, 1 the same" in text


def test_junit_fails_what_is_worse_skips_what_was_not_compared_and_is_never_green_on_nothing(tmp_path):
    path = tmp_path / "guard.xml"
    missing = (NotCompared(title="times", reason="other machine"),)

    write_junit(report_of(Status.SAME, Status.WORSE, not_compared=missing), path)
    suite = ElementTree.parse(path).getroot()
    write_junit(report_of(), path)
    empty = ElementTree.parse(path).getroot()

    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("4", "2", "1")
    assert empty.get("failures") == "1"


@pytest.mark.parametrize(
    "report",
    [
        report_of(Status.SAME, Status.UNSURE),
        report_of(Status.SAME, Status.BETTER, Status.CHANGED),
        report_of(Status.WORSE, toolchain_changes=("torch 2.11 -> 2.13",)),
    ],
    ids=lambda report: report.verdict,
)
def test_junit_skips_what_is_neither_a_pass_nor_a_regression(tmp_path, report):
    path = tmp_path / "guard.xml"
    write_junit(report, path)

    suite = ElementTree.parse(path).getroot()
    skipped = [case.get("name") for case in suite if case.find("skipped") is not None]

    assert suite.get("failures") == "0"
    assert skipped == ["verdict"] + ["fact"] * len([one for one in report.findings if one.status is not Status.SAME])


def test_beside_a_slower_pass_what_moved_with_the_toolchain_stays_excused(tmp_path):
    path = tmp_path / "guard.xml"
    slower = report_of(Status.WORSE, tier=Tier.SAME_JOB).findings
    excused = dataclasses.replace(report_of(Status.WORSE).findings[0], title="excused")
    report = dataclasses.replace(report_of(toolchain_changes=("torch 2.11 -> 2.13",)), findings=(*slower, excused))

    write_junit(report, path)

    failed = [case.get("name") for case in ElementTree.parse(path).getroot() if case.find("failure") is not None]
    assert failed == ["verdict", "fact"]
    assert [line.split()[0] for line in github_annotations(report, tmp_path)] == ["::error", "::notice"]


def test_an_annotation_names_the_users_file_and_line_where_it_exists(tmp_path):
    (tmp_path / "m.py").write_text("")

    (line,) = github_annotations(report_of(Status.WORSE), tmp_path)
    (elsewhere,) = github_annotations(report_of(Status.WORSE), tmp_path / "other")

    assert line.startswith(f"::error file={tmp_path}/m.py,line=3,title=bexplore guard::fact")
    assert elsewhere.startswith("::error file=job.yaml,")


def test_an_annotation_is_one_line_whatever_it_says(tmp_path):
    finding = Finding(name="f", title="100 %\nfact", tier=Tier.ANY_MACHINE, status=Status.WORSE, details=("a", "b"))

    (line,) = github_annotations(Report(config="a,b:c.yaml", reference="r", findings=(finding,)), tmp_path)

    assert "\n" not in line
    assert "100 %25%0Afact" in line
    assert "file=a%2Cb%3Ac.yaml" in line


def test_the_step_summary_is_added_to(tmp_path, monkeypatch):
    page = tmp_path / "summary.md"
    page.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))

    append_step_summary(report_of(Status.WORSE))

    assert page.read_text().startswith("before\n### bexplore guard: regression")


def test_the_json_event_has_the_verdict_and_every_finding():
    event = json.loads(json.dumps(report_of(Status.WORSE).as_dict()))

    assert (event["event"], event["verdict"], event["exit_code"]) == ("guard", "regression", 1)
    assert event["findings"][0]["status"] == "worse"
