"""A run as a page: everything of the run is in it, nothing else is needed to read it, and it never breaks a run."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from bexplore.measurement.probe import Observation
from bexplore.output.report.figure import Band
from bexplore.output.report.figures import figures
from bexplore.output.report.files import ReportFile, html, read_report_data
from bexplore.output.report.page import comparisons_table, first_steps, mark_code, markdown, probes_table
from bexplore.output.summary import batch_sizes_table
from bexplore.planning.plan import make_plans
from bexplore.planning.request import PlanRequest, Work
from bexplore.run.events import Finished
from bexplore.run.result import RunResult
from bexplore.run.run_directory import Run
from bexplore.search.evidence import Evidence
from bexplore.search.posterior.posterior import CredibleBand, fit_posterior
from bexplore.search.space import MemoryPrior, Space
from tests.builders import observed
from tests.unit.planning.builders import costs
from tests.unit.run.builders import GIB, HOSTILE, Page, cost_model, make_run, probe


def rewrite(run: Run, **changes: object) -> None:
    run.write_result(RunResult.from_record(run.result().as_record() | changes))


@pytest.fixture
def page(tmp_path) -> Page:
    return Page(html(read_report_data(make_run(tmp_path))))


def test_the_answer_comes_first_and_then_what_to_do(page):
    told = " ".join(page.text.split())
    assert "Use micro_batch_size: 8 4.00x the speed of size 1 405 samples/s of the pass 93 / 100" in told
    assert (
        told.index("Use micro_batch_size")
        < told.index("bexplore apply job.yaml --mode train")
        < told.index("All probes")
    )


@pytest.mark.parametrize(
    "text",
    [
        "Samples per second over micro-batch size",
        "Peak memory over micro-batch size",
        "Confidence over probes",
        "model.py:3 gelu",  # where the memory goes
        "52,480",  # tokens/s of the exact probe of size 8: 410 * 128
        "41.5%",  # MFU: 410e12 of 989e12
        "62.2%",  # HFU: half as much again is recomputed
        "out of memory",
        "How to read the score",
        "the requested confidence, 90 out of 100, is reached",
        "The gradients agree.",
        "NVIDIA H100 80GB HBM3",
        "8,192",  # tokens of a valid global batch
    ],
)
def test_everything_of_the_run_is_in_it(page, text):
    assert text in page.text


@pytest.mark.promise("a report that would load something of the network", "nothing is fetched")
def test_nothing_is_fetched_and_the_file_is_small(tmp_path):
    source = html(read_report_data(make_run(tmp_path)))
    fetched = re.findall(r'(?:src|href)\s*=\s*"|url\(|@import|https?://(?!www\.w3\.org/2000/svg)', source)
    assert fetched == []
    assert len(source.encode()) < 10**6


@pytest.mark.promise("markup and scripts in names, reasons and settings of a run", "text in the report, never markup")
def test_what_a_user_wrote_is_text_and_never_markup(tmp_path):
    source = html(read_report_data(make_run(tmp_path)))
    assert "<script>alert" not in source
    assert HOSTILE in Page(source).text


def test_every_mark_can_be_reached_and_is_told_in_words(page):
    marks = [attributes for tag, attributes in page.tags if tag == "g" and "data-tip" in attributes]
    assert len(marks) == 2 * (3 + 1 + 1 + 3 + 1 + 4)  # wide and narrow: speeds, failure, ring; peaks, refusal; scores
    assert all(mark["tabindex"] == "0" and mark["aria-label"] == mark["data-tip"] for mark in marks)
    pictures = [attributes for tag, attributes in page.tags if tag == "svg"]
    identifiers = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    assert all(set(picture["aria-labelledby"].split()) <= set(identifiers) for picture in pictures)


def test_a_device_that_is_not_in_the_table_has_no_utilization(tmp_path):
    facts = read_report_data(make_run(tmp_path, device_name="NVIDIA H100 80GB HBM3 MIG 1g.10gb"))
    assert facts.peak_flops_per_s is None
    assert "No MFU" in Page(html(facts)).text


def test_operations_that_are_not_counted_stand_beside_the_utilization(tmp_path):
    facts = read_report_data(make_run(tmp_path))
    part = dataclasses.replace(facts.cost_model, unknown={"mine::scan": 0.25})
    told = Page(html(dataclasses.replace(facts, cost_model=part))).text
    assert "mine::scan (25% of the bytes moved)" in told
    assert "≥ " in told
    assert "≥ " not in Page(html(facts)).text


def test_an_unfinished_run_without_a_trace_has_a_report_too(tmp_path):
    facts = read_report_data(make_run(tmp_path, finished=False))
    text = Page(html(facts)).text
    assert "The exploration is not finished" in text
    assert "Where the memory goes" not in text
    assert "FLOP/s" not in text


def test_a_run_that_has_measured_nothing_says_so(tmp_path):
    run = make_run(tmp_path, finished=False)
    for name in ("journal.jsonl", "events.jsonl"):
        (run.directory / name).unlink()
    facts = read_report_data(run)
    assert "No recommendation yet" in Page(html(facts)).text
    assert "No recommendation yet" in markdown(facts)
    assert figures(facts) == ()


def test_a_run_that_ended_with_an_error_says_which_and_what_to_do(tmp_path):
    run = make_run(tmp_path, finished=False)
    run.write_error("the command fails: no <folder>", hint="make the folder")
    facts = read_report_data(run)

    for text in (Page(html(facts)).text, markdown(facts)):
        assert "ended with an error: the command fails: no <folder>" in text
        assert "Make the folder" in text and "explore anew" in text
        assert "No recommendation" in text and "No recommendation yet" not in text and "Resume" not in text


def test_the_band_of_the_throughput_lies_around_what_was_measured(tmp_path):
    evidence = [Evidence.from_observation(item) for item in make_run(tmp_path).journal.read()]
    memory = MemoryPrior(peak_bytes=cost_model().peak_memory_bytes, budget_bytes=4 * GIB)
    curve = CredibleBand.from_posterior(fit_posterior(Space.from_sizes(range(1, 33)), evidence, memory=memory))
    at = curve.sizes.index(8)
    assert curve.low[at] < 410 < curve.high[at] * 1.05
    assert all(low <= middle <= high for low, middle, high in zip(curve.low, curve.middle, curve.high, strict=True))
    assert curve.fits[0] == 1.0 and curve.fits[-1] < 0.5


def test_the_figure_draws_the_searchs_own_band_where_the_size_may_fit(tmp_path):
    band = next(mark for mark in figures(read_report_data(make_run(tmp_path)))[0].marks if isinstance(mark, Band))

    assert band.points == [(1.0, 98.0, 102.0), (4.0, 250.0, 320.0), (8.0, 395.0, 415.0), (13.0, 300.0, 600.0)]


def test_an_interrupted_run_has_the_band_and_the_device_of_its_last_event(tmp_path):
    finished = make_run(tmp_path / "finished").result()
    run = make_run(tmp_path / "interrupted", finished=False)
    with (run.directory / "events.jsonl").open("a") as lines:
        lines.write("\n" + json.dumps(finished.as_record()) + "\n")

    data = read_report_data(run)

    assert not data.is_finished
    assert data.result.search.throughput_band == finished.search.throughput_band
    assert data.result.device_info == finished.device_info


def test_it_names_a_size_that_spares_the_user_a_new_global_batch_size(tmp_path):
    run = make_run(tmp_path)
    kept = {"micro_batch_size": 4, "accumulation_steps": 15, "samples_per_s": 200.0, "confidence": 92}
    kept |= {"free_micro_batch_size": 8, "over_recommended": 0.97, "relative_performance": 1.5}
    rewrite(run, batch_size=60, replica_batch_size=60, keeps_batch_size=kept)

    text = " ".join(Page(html(read_report_data(run))).text.split())
    assert "To keep batch_size 60 , use micro_batch_size 4 in 15 accumulation steps: 0.97x" in text


def test_a_score_below_its_target_says_within_what_share_it_would_be_90(tmp_path):
    run = make_run(tmp_path)
    rewrite(run, confidence=78, regret_bound_90=0.0341)

    told = "below its target (78 out of 100 that it is within 2% of the fastest that fits, 90 out of 100 that it is"
    assert f"{told} within 3.5%)" in html(read_report_data(run))
    assert f"{told} within 3.5%)" in markdown(read_report_data(run))


def test_what_is_left_to_gain_is_on_the_page_and_in_the_short_report(tmp_path):
    run = make_run(tmp_path)
    economy = {"left_to_gain": 0.006, "training_time_s": 36_000.0, "next_probe_s": 40.0, "next_probe_saves": 4e-4}
    rewrite(run, confidence=78, stop_reason="costs_more_than_it_saves", **economy)

    told = "remaining gain: 0.6% in expectation, 3 min 36 s of 10 h, at a score of 78; another probe costs 40.0 s"
    page = Page(html(read_report_data(run))).text
    for text in (" ".join(page.split()), markdown(read_report_data(run))):
        assert told in text
        assert "The score is below its target, and another probe would not pay." in text


def interleaved_probe(number: int, size: int, interleaved_times_s: dict[int, tuple[float, ...]]) -> Observation:
    return probe(number, size, 400.0, interleaved_times_s=interleaved_times_s)


def test_interleaved_sizes_are_compared_with_the_answer(tmp_path):
    run = make_run(tmp_path)
    run.journal.append(interleaved_probe(4, 4, {4: (0.020, 0.021, 0.020), 8: (0.032, 0.033, 0.033)}))
    run.journal.append(interleaved_probe(5, 8, {8: (0.033,), 4: (0.021,), 2: (0.020,)}))

    table = comparisons_table(read_report_data(run))

    assert table.headings == ("size", "speed over size 8's", "95% interval", "pairs")
    assert [(row[0], row[-1]) for row in table.rows] == [("2", "1"), ("4", "4")]
    assert table.rows[0][2] == "–"  # one pair has no interval
    low, high = (float(end) for end in table.rows[1][2].split(" to "))
    assert low < float(table.rows[1][1].removesuffix("x")) < high < 0.85  # 4 / 0.02 over 8 / 0.0325: 0.80
    assert "Measurements of sizes timed interleaved" in Page(html(read_report_data(run))).text
    assert "**Measurements of sizes timed interleaved**" in markdown(read_report_data(run))


def test_the_most_interleaved_size_replaces_one_that_never_was(tmp_path):
    run = make_run(tmp_path)
    run.journal.append(interleaved_probe(4, 4, {4: (0.02, 0.02), 2: (0.02, 0.02)}))
    run.journal.append(interleaved_probe(5, 4, {4: (0.02, 0.02), 1: (0.01, 0.01)}))

    assert comparisons_table(read_report_data(run)).headings[1] == "speed over size 4's"


def test_a_run_without_rounds_has_no_table_of_them(page):
    assert "Measurements of sizes timed interleaved" not in page.text


def test_the_report_says_on_request_whether_compiling_pays(tmp_path):
    run = make_run(tmp_path)
    eager = {"verdict": "unsure", "over_compiled": 1.05, "low": 0.62, "high": 1.78, "num_pairs": 5, "problem": ""}
    eager |= {"compiled_timed_s": 0.5, "eager_timed_s": 0.6, "peak_memory_bytes": None}
    rewrite(run, eager=eager)

    for text in (html(read_report_data(run)), markdown(read_report_data(run))):
        assert "without torch.compile this size runs at 1.05x the speed (95% interval 0.62 to 1.78" in text


def test_remarks_stand_below_a_probes_row_and_the_answer_is_marked(tmp_path):
    table = probes_table(read_report_data(make_run(tmp_path)))

    assert table.remarks == ("", "", HOSTILE, "")
    assert table.highlighted == 3  # the exact probe of size 8
    assert {len(row) for row in table.rows} == {len(table.headings)}


def test_the_users_batch_size_is_marked(tmp_path):
    table = batch_sizes_table(read_report_data(make_run(tmp_path)).result)

    assert (table.highlighted, table.rows[0][0], table.mark) == (0, "64", "yours")


def test_a_full_budget_is_told_in_words(tmp_path):
    run = make_run(tmp_path)
    rewrite(run, memory_headroom_bytes=0)

    text = Page(html(read_report_data(run))).text
    assert "no memory budget left" in text
    assert "0 B" not in text.split("All probes")[0].split("Samples per second over")[0]


def test_markdown_is_short_and_marks_the_answer(tmp_path):
    text = markdown(read_report_data(make_run(tmp_path)))
    assert "**Use `micro_batch_size: 8`**: 4.00x" in text
    assert "| **8** | **410** | **52,480** |" in text
    assert len(text.splitlines()) < 40


@pytest.mark.parametrize(
    ("command", "env", "told"),
    [
        (["python", "a b.py", "{micro_batch_size}"], {}, "python 'a b.py' 8"),
        (["python", "t.py"], {"SIZE": "{micro_batch_size}"}, "SIZE=8 python t.py"),
        (["python", "t.py", "{config}"], {}, "bexplore apply "),
    ],
)
def test_a_command_is_told_with_its_size_and_a_file_by_what_writes_into_it(tmp_path, command, env, told):
    data = read_report_data(make_run(tmp_path))
    job = {"workload": "command", "model": {"command": command, "env": env}}

    (_, line), *_ = first_steps(dataclasses.replace(data, meta={**data.meta, "job": job}))

    assert line.startswith(told) and (line == told or told.endswith(" "))


def test_markdown_tells_a_budget_only_where_there_is_one(tmp_path):
    data = read_report_data(make_run(tmp_path))

    told = re.compile(r"Peak memory [\d.]+ GiB( of 4\.00 GiB)?\.")
    assert told.search(markdown(data))[1]
    assert told.search(markdown(dataclasses.replace(data, budget_bytes=None)))[1] is None


@pytest.mark.promise("a report that cannot be written", "a warning; the result is complete")
def test_a_report_that_fails_is_a_warning_and_no_more(tmp_path):
    warnings: list[str] = []
    run = make_run(tmp_path)
    event = Finished(run=run, result=run.result())
    ReportFile(warnings.append)(event)
    assert "micro_batch_size: 8" in (run.directory / "report.html").read_text()
    assert warnings == []
    (run.directory / "trace.json").write_text("{}")
    ReportFile(warnings.append)(event)
    assert len(warnings) == 1 and warnings[0].startswith("no report:")


def test_observed_builder_of_one_probe_is_enough_for_a_report(tmp_path):
    run = make_run(tmp_path, finished=False)
    (run.directory / "journal.jsonl").unlink()
    run.journal.append(observed(4))
    assert "1 measurement of 1 size" in Page(html(read_report_data(run))).text


@pytest.mark.parametrize(
    ("parallel", "told", "times"),
    [
        (None, "", "Step times exclude the synchronisation of replicas."),
        ({"holds_communication": False}, "one of 8 ranks ran, alone", "hold no communication: one rank ran alone."),
        (
            {"holds_communication": True, "hosts": ["node1"], "launcher": "srun"},
            "8 ran on node1, started by srun",
            "Step times hold the synchronisation of replicas.",
        ),
    ],
)
def test_the_ranks_stand_on_the_page_and_in_the_short_report(tmp_path, parallel, told, times):
    ranks = parallel and {"description": "DDP over 8 ranks", "num_ranks": 8, "num_replicas": 8} | parallel
    run = make_run(tmp_path)
    rewrite(run, parallel=ranks)
    data = read_report_data(run)

    text = Page(html(data)).text

    assert times in " ".join(text.split())
    for shown in (" ".join(text.split()), markdown(data)):
        assert (f"ranks: {told}" in shown) if told else ("ranks: " not in shown)


@pytest.mark.parametrize(("sequence_length", "option"), [(128, "--tokens 300B"), (None, "--samples 1.2M")])
def test_the_plan_that_a_report_advises_is_one_that_its_job_has(tmp_path, sequence_length, option):
    (plan,) = make_plans(costs(tokens_per_sample=sequence_length), PlanRequest(work=Work(steps=10)), None).plans
    data = read_report_data(make_run(tmp_path))
    job = dataclasses.replace(data.job, sequence_length=sequence_length)

    assert f"{option} --devices 8,64" in Page(html(dataclasses.replace(data, job=job, plan=plan))).text


def names_of_marks(data) -> list[str]:
    return [mark.name for mark in figures(data)[0].marks]


def test_a_legend_names_a_shared_program_only_where_something_is_compiled(tmp_path):
    data = read_report_data(make_run(tmp_path))
    eager = tuple(dataclasses.replace(item, ran_eagerly=True) for item in data.observations)
    batch = dataclasses.replace(data.result.batch, num_replicas=1)  # which only a command shows
    of_command = dataclasses.replace(data, result=dataclasses.replace(data.result, batch=batch))

    assert "measured, shared program" in names_of_marks(data)
    assert "measured in a shared process" in names_of_marks(dataclasses.replace(data, observations=eager))
    assert "measured in a shared start" in names_of_marks(of_command)


def test_warnings_and_sizes_that_failed_stand_below_the_answer_and_above_the_figures(tmp_path):
    run = make_run(tmp_path)
    rewrite(run, warnings=("the machine was busy",))
    text = Page(html(read_report_data(run))).text
    places = ("Use", "the machine was busy", "What to do first", "Sizes that did not run", "Samples per second over")
    assert [text.index(one) for one in places] == sorted(text.index(one) for one in places)
    assert re.search(r"13:\s+out of memory", text)


def test_both_axes_of_a_figure_name_their_quantity(page):
    for label in (
        "samples/s",
        "micro-batch size (samples)",
        "peak memory",
        "confidence (out of 100)",
        "probes (number)",
    ):
        assert f" {label} " in page.text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("set explore.effort: thorough, then go on", "set <code>explore.effort: thorough</code>, then go on"),
        ("use micro_batch_size 4 of <b>", "use <code>micro_batch_size 4</code> of &lt;b&gt;"),
        ("type `mfu=0.4<1`", "type <code>mfu=0.4&lt;1</code>"),
        ("time it, by bexplore network", "time it, by <code>bexplore network</code>"),
        ("export OMP_NUM_THREADS=4, or not", "export <code>OMP_NUM_THREADS=4</code>, or not"),
        ("nothing of it", "nothing of it"),
    ],
)
def test_keys_commands_and_variables_are_code_in_a_sentence(text: str, shown: str):
    assert mark_code(text) == shown


def test_rows_are_a_table_from_740_pixels_on_and_figures_share_a_wide_line(tmp_path):
    source = html(read_report_data(make_run(tmp_path)))
    cards = [int(width) for width in re.findall(r"max-width:(\d+)px\)\{\.\w+ thead", source)]
    assert sorted(cards) == [599, 739]
    assert 'class="columns"' in source
