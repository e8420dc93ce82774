"""The report of a run that explored settings: the front, a curve for each, and the program of the answer."""

from __future__ import annotations

import dataclasses

import pytest

from bexplore.host.records import from_record
from bexplore.job import Job
from bexplore.output.report.figures import figures
from bexplore.output.report.page import first_steps, html, markdown, probes_table, sizes_table
from bexplore.output.report.report_data import read_report_data
from bexplore.output.report.svg import draw
from bexplore.run.parts.choice import ChoicePart, FrontPoint
from bexplore.run.result import RunResult
from bexplore.run.run_directory import Run
from bexplore.run.selection import Selection, TracedVariant
from tests.unit.run.builders import GIB, Page, cost_model, make_run, probe

NONE, FULL = {"activation_checkpointing": "none"}, {"activation_checkpointing": "full"}
NAMES = ("activation_checkpointing=none", "activation_checkpointing=full")


def run_of_settings(folder, *, finished: bool = True) -> Run:
    """A run whose answer has the settings of variant 1, by one probe of size 16."""
    run = make_run(folder, finished=finished)
    job = from_record(Job, run.meta()["job"])
    recomputed = dataclasses.replace(job, activation_checkpointing="full")
    searched = (
        TracedVariant(name=NAMES[0], settings=NONE, job=job, cost_model=cost_model()),
        TracedVariant(
            name=NAMES[1],
            settings=FULL,
            job=recomputed,
            cost_model=dataclasses.replace(cost_model(), num_parameters=11),
        ),
    )
    run.remember_variants(Selection(searched=searched).as_record())
    item = probe(4, 16, 500.0)
    run.journal.append(dataclasses.replace(item, probe=dataclasses.replace(item.probe, variant=1)))
    if finished:
        front = (
            FrontPoint(settings=NONE, micro_batch_size=8, peak_memory_bytes=3 * GIB, samples_per_s=410.0, ran=True),
            FrontPoint(settings=FULL, micro_batch_size=12, peak_memory_bytes=4 * GIB, samples_per_s=450.0, ran=False),
            FrontPoint(settings=FULL, micro_batch_size=16, peak_memory_bytes=5 * GIB, samples_per_s=500.0, ran=True),
        )
        over = {"settings_over_file": 1.2, "settings_over_file_interval": (1.1, 1.3)}
        result = run.result()
        run.write_result(
            dataclasses.replace(
                result,
                answer=dataclasses.replace(result.answer, micro_batch_size=16, samples_per_s=500.0),
                choice=ChoicePart(variant=1, settings=FULL, pareto_front=front, **over),
            )
        )
    return run


@pytest.fixture
def data(tmp_path):
    return read_report_data(run_of_settings(tmp_path))


def test_the_program_of_the_report_is_that_of_the_answer(data):
    assert data.job.activation_checkpointing == "full"
    assert data.cost_model.num_parameters == 11
    assert [item.observation.micro_batch_size for item in data.sizes] == [16]
    assert sizes_table(data).highlighted == 0


def test_each_probe_names_its_settings(data):
    table = probes_table(data)

    assert table.headings[2] == "settings"
    assert [row[2] for row in table.rows] == [NAMES[0]] * 4 + [NAMES[1]]
    assert table.highlighted == 4


def test_the_front_is_a_figure_of_runs_predictions_and_the_answer(data):
    figure = next(one for one in figures(data) if one.key == "front")
    by_name = {mark.name: mark for mark in figure.marks}

    assert [(dot.x, dot.y) for dot in by_name["on the front, ran"].dots] == [(3.0 * GIB, 410.0), (5.0 * GIB, 500.0)]
    assert [dot.x for dot in by_name["on the front, predicted"].dots] == [4.0 * GIB]
    assert [dot.y for dot in by_name["recommended"].dots] == [500.0]
    assert len(by_name["probes"].dots) == 4
    assert "3 sizes with settings that no other beats in both; 2 ran" in figure.description


def test_settings_have_a_curve_each(data):
    figure = next(one for one in figures(data) if one.key == "settings")
    curves = {mark.name: [dot.x for dot in mark.dots] for mark in figure.marks if mark.name in NAMES}

    assert curves == {NAMES[0]: [1, 8], NAMES[1]: [16]}
    assert "var(--curve0)" in draw(figure)
    assert "--curve5" in draw(figure, standalone=True)


def test_the_page_and_the_short_report_name_the_settings(data):
    text = " ".join(Page(html(data)).text.split())

    assert "Use micro_batch_size: 16 with activation_checkpointing=full" in text
    assert "settings: set activation_checkpointing=full: 1.20x (1.10 to 1.30)" in text
    assert "Settings and sizes of the front" in text
    assert "**Use `micro_batch_size: 16`** with activation_checkpointing=full: 4.00x" in markdown(data)
    assert (
        first_steps(data)[0][0] == "Set micro_batch_size: 16 and activation_checkpointing=full in `job.yaml`, or type"
    )


def test_an_unfinished_run_has_curves_and_no_front(tmp_path):
    data = read_report_data(run_of_settings(tmp_path, finished=False))

    assert {one.key for one in figures(data)} == {"throughput", "settings", "memory", "confidence"}
    assert "Settings and sizes of the front" not in html(data)


def test_a_run_of_one_variant_has_neither_figure_nor_column(tmp_path):
    data = read_report_data(make_run(tmp_path))

    assert {one.key for one in figures(data)} == {"throughput", "memory", "confidence"}
    assert "settings" not in probes_table(data).headings
    assert RunResult.from_record(data.result.as_record()).choice.pareto_front == ()
