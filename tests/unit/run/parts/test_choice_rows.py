"""Settings in words: what to set, what it gains and changes, the front, and sizes by settings."""

from __future__ import annotations

import pytest

from bexplore.output.summary import front_table, shown_points, summary_text
from bexplore.output.tables import settings_table
from bexplore.run.parts.choice import FrontPoint
from bexplore.run.result import RunResult
from tests.unit.run.builders import run_result

MIB = 2**20
NONE, FULL = {"activation_checkpointing": "none"}, {"activation_checkpointing": "full"}
BEFORE = {"micro_batch_size": 8, "base_micro_batch_size": 1, "relative_performance": 1.5, "confidence": 91}
BEFORE |= {"samples_per_s": 123.4, "num_probes": 5, "run_dir": "somewhere"}


def point(settings: dict, size: int, mib: int, speed: float, *, ran: bool = True) -> FrontPoint:
    return FrontPoint(
        settings=settings, micro_batch_size=size, peak_memory_bytes=mib * MIB, samples_per_s=speed, ran=ran
    )


FRONT = (point(NONE, 1, 10, 50.0), point(FULL, 4, 20, 100.0, ran=False), point(FULL, 8, 30, 123.0))


def result(**fields) -> RunResult:
    settings = {"variant": 1, "settings": FULL, "settings_over_file": 1.12, "pareto_front": FRONT}
    settings |= {"settings_over_file_interval": (1.05, 1.2), "operations_over_file": 1.3}
    return run_result(**BEFORE | settings | fields)


def sentences(**fields) -> list[str]:
    one = result(**fields)
    return [row.text for row in one.choice.rows(one.view(0.02))]


def test_the_gain_is_told_with_its_interval():
    assert sentences() == [
        "set activation_checkpointing=full: 1.12x (1.05 to 1.20) the speed of the file's own at their best size"
    ]


def test_a_job_that_fits_at_no_size_with_its_own_settings_is_told_what_others_cost():
    assert sentences(settings_over_file=None, settings_over_file_interval=None) == [
        "set activation_checkpointing=full: with the file's own settings no size fits; by the trace this takes 1.30x "
        "the operations"
    ]


def test_another_precision_is_said_to_change_the_training():
    told = sentences(changes_training=("precision bfloat16 instead of float32",))
    assert told[1] == ("this changes the training: precision bfloat16 instead of float32, as explore.settings allows")


def test_whether_an_argument_of_own_code_changes_the_training_is_left_to_the_code():
    told = sentences(settings={"workload.arguments.chunk": 8})
    assert told[1] == "whether chunk changes the training, your own code decides"


def test_the_files_own_settings_need_nothing():
    assert sentences(variant=0, settings=NONE) == ["the file's own are the fastest that fit"]


def words(one: RunResult) -> str:
    return summary_text(one, tolerance=0.02)


def test_the_summary_names_the_settings_in_its_headline_and_in_a_row():
    text = words(result())

    assert text.startswith(
        "Use micro_batch_size 8 with activation_checkpointing=full: 1.50x the speed of size 1 with the file's own "
        "settings, 123.4 samples/s; confidence 91 out of 100."
    )
    assert "\n  settings         set activation_checkpointing=full: 1.12x (1.05 to 1.20)" in text
    own = words(result(variant=0, settings=NONE))
    assert own.startswith("Use micro_batch_size 8 with the file's own settings: 1.50x")
    assert "of size 1 with settings that fit" in words(result(base_variant=1))


def test_a_plain_summary_says_nothing_of_settings():
    text = words(run_result(**BEFORE))

    assert text.startswith("Use micro_batch_size 8: 1.50x the speed of size 1, 123.4 samples/s")
    assert "settings" not in text
    assert "Memory against speed" not in text


def test_the_front_is_a_short_table_that_marks_what_ran_and_what_is_recommended():
    assert front_table(result(), 0.02).as_lines() == [
        "  settings                       size  peak memory  samples/s",
        "  activation_checkpointing=none     1     10.0 MiB         50  ran",
        "  activation_checkpointing=full     4     20.0 MiB        100  predicted",
        "  activation_checkpointing=full     8     30.0 MiB        123  ran  <- recommended",
    ]
    assert front_table(run_result(**BEFORE), 0.02).rows == ()


def test_points_that_are_hardly_faster_are_not_shown_but_the_recommended_one_is():
    near = (point(NONE, 1, 10, 100.0), point(NONE, 2, 11, 101.0), point(FULL, 8, 12, 101.5), point(FULL, 9, 13, 120.0))
    shown = shown_points(result(pareto_front=near), 0.02)

    assert [one.micro_batch_size for one in shown] == [1, 8, 9]


def test_of_a_long_front_the_largest_steps_are_shown_with_its_ends():
    long = tuple(point(FULL, size, 10 * size, 100.0 + 10 * size**2) for size in range(1, 31))
    shown = shown_points(result(pareto_front=long), 0.02, most=6)

    assert len(shown) == 6
    assert {1, 8, 30} <= {one.micro_batch_size for one in shown}


# Sizes by settings, traced


def traced(name: str, per_sample_mib: int, **fields) -> dict:
    record = {
        "name": name,
        "num_parameters": 1234,
        "relative_sd": 0.02,
        "device_name": "",
        "memory_budget_bytes": 100 * MIB,
        "why_budget": "set by explore.memory_budget",
        "peak_memory_bytes": {str(size): size * per_sample_mib * MIB for size in (1, 2, 4, 8)},
        "reserved_over_peak": 1.0,
        "max_micro_batch_size": 100 // per_sample_mib,
        "operations_over_file": 1.0,
        "notes": [],
        "reason": "",
    }
    return record | fields


def test_sizes_by_settings_have_a_row_for_each_with_its_operations_and_what_does_not_fit():
    lines = settings_table([traced("a=1", 20), traced("a=2", 10, operations_over_file=1.25)]).splitlines()

    assert lines[0].startswith("1,234 parameters, memory to within 4%")
    assert lines[4].split() == ["a=1", "5", "1.00x", "20.0", "MiB", "40.0", "MiB", "80.0", "MiB", "160", "MiB", "*"]
    assert lines[5].split() == ["a=2", "10", "1.25x", "10.0", "MiB", "20.0", "MiB", "40.0", "MiB", "80.0", "MiB"]


def test_what_cannot_be_traced_says_why_in_its_row():
    unknown = dict.fromkeys(traced("a=2", 1)) | {"name": "a=2", "reason": "no blocks", "notes": []}

    assert "  a=2       cannot be traced: no blocks" in settings_table([traced("a=1", 20), unknown])


@pytest.mark.parametrize("count", [1, 5, 6, 17])
def test_the_table_has_few_columns_with_the_first_and_the_last_size(count):
    sizes = {str(size): MIB for size in range(1, count + 1)}
    head = settings_table([traced("a=1", 1, peak_memory_bytes=sizes)]).splitlines()[3]

    assert head.count("peak at") == min(count, 5)
    assert head.split()[-1] == str(count)
