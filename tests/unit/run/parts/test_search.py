"""How the answer stands among the sizes that ran."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bexplore.measurement.probe import REAL_STEP, Outcome
from bexplore.run.facts import Facts
from bexplore.run.parts.row import View
from bexplore.run.parts.search import SearchPart
from bexplore.search.recommendation import Recommendation, Speed
from tests.builders import observed


def found(
    maximum: int | None,
    speeds: dict[tuple[int, int], float],
    *,
    size: int = 8,
    command: object = None,
    batch: int | None = None,
    **options,
) -> SearchPart:
    """Return the part of a search that recommends a size of variant 0, by samples/s of size and variant."""
    best = Recommendation(
        micro_batch_size=size,
        relative_performance=1.0,
        confidence=50,
        samples_per_s=speeds[size, 0],
        smallest_within_tolerance=size,
        base_micro_batch_size=1,
        num_probes=2,
        speeds=tuple(
            Speed(micro_batch_size=size, variant=variant, samples_per_s=one, interval=(one, one))
            for (size, variant), one in speeds.items()
        ),
    )
    searched = SimpleNamespace(recommendation=best, stop_reason="", outcomes={}, runs_at=None, posterior=None)
    options = {"observations": (), "elapsed_s": 1.0} | options
    return SearchPart.find(
        Facts(
            config=SimpleNamespace(maximum=maximum, command=command, replica_batch_size=batch),
            searched=searched,
            **options,
        )
    )


@pytest.mark.parametrize(
    ("speeds", "share"),
    [
        ({(4, 0): 90.0, (8, 0): 100.0}, 0.0),
        ({(4, 0): 100.0, (8, 0): 99.0}, 0.01),
        ({(4, 1): 200.0, (8, 0): 99.0}, 0.0),  # of other settings, which are told apart
    ],
)
def test_the_answer_falls_behind_the_fastest_size_that_ran(speeds, share):
    assert found(None, speeds).behind_fastest == pytest.approx(share)


@pytest.mark.parametrize(
    ("maximum", "command", "batch", "bound"),
    [
        (8, None, None, "max"),
        (8, "train", 8, "max"),
        (16, None, None, ""),
        (None, None, None, ""),
        (64, "train", 8, "batch"),
        (64, "train", 16, ""),
        (64, None, 8, ""),  # a job has several passes or one of any size
    ],
)
def test_what_keeps_the_answer_from_being_larger_is_known(maximum, command, batch, bound):
    assert found(maximum, {(8, 0): 1.0}, command=command, batch=batch).bound == bound


@pytest.mark.parametrize(
    ("size", "command", "maximum", "is_told"),
    [(4096, "train", None, True), (64, "train", None, False), (4096, None, None, False), (4096, "train", 8192, False)],
)
def test_an_answer_at_the_bound_of_commands_is_told(size, command, maximum, is_told):
    rows = found(maximum, {(size, 0): 1.0}, size=size, command=command).rows(View(tolerance=0.02))

    assert any("a larger explore.max alone" in row.text for row in rows) is is_told


def test_starts_that_check_the_answer_are_counted_apart():
    part = found(None, {(8, 0): 1.0}, observations=[observed(8), observed(8, details={REAL_STEP: None})])

    assert (part.num_probes, part.num_probes_after) == (2, 1)


@pytest.mark.parametrize(
    ("told", "measured", "words"),
    [
        (100.0, {8: [99.0, 101.0], 4: [90.0]}, ""),
        (100.0, {8: [100.0], 4: [101.0]}, ""),
        (90.0, {8: [100.0]}, "100 samples/s in its only probe; "),
        (120.0, {8: [110.0, 100.0]}, "100, 110 samples/s in the probes of this size; "),
        (100.0, {8: [100.0], 4: [120.0, 90.0, 110.0]}, "100 samples/s in its only probe, and 110 at size 4; "),
    ],
)
def test_what_was_measured_is_told_where_the_answer_s_speed_or_another_size_is_apart_from_it(told, measured, words):
    probes = [observed(size, pass_times_s=(size / rate,) * 3) for size, rates in measured.items() for rate in rates]

    rows = found(None, {(8, 0): told, (4, 0): 1.0}, observations=probes).rows(View(tolerance=0.02))

    by_label = {row.label: row.text for row in rows}
    row = by_label.get("measured", "")
    assert row.startswith(words) and bool(row) == bool(words)
    assert by_label["why"].startswith("likeliest the fastest of " if "at size 4" in words else "fastest of ")


def test_a_traceback_stands_below_the_failure_whose_it_is_and_ends_with_its_last_frame():
    frames = "".join(f'  File "train.py", line {line}, in step\n    run({line})\n    ^^^\n' for line in range(20))
    text = f"Traceback (most recent call last):\n{frames}ValueError: no samples\n"
    crash = {"outcome": Outcome.CRASHED, "pass_times_s": ()}
    failures = [
        observed(1, reason="RuntimeError: even sizes", **crash),
        observed(2, reason="ValueError: no samples", traceback_text=text, **crash),
        observed(3, reason="KeyError: other", traceback_text="KeyError: other", **crash),
    ]

    rows = [row.text for row in found(None, {(8, 0): 1.0}, observations=failures).failed_rows()]

    assert [rows.index(row) for row in rows if "crashed" in row] == [0, 1, len(rows) - 1]
    assert rows[1] == "2: crashed: ValueError: no samples" and rows[-2].strip() == "run(19)"
    assert "^" not in "".join(rows)


def test_each_bug_shows_its_own_traceback_and_one_bug_shows_it_once():
    head = 'Traceback (most recent call last):\n  File "train.py", line '
    texts = [f"{head}{line}, in step\n    run()\n{error}\n" for line, error in BUGS]
    failures = [
        observed(size, reason=error, traceback_text=text, outcome=Outcome.CRASHED, pass_times_s=())
        for size, ((_, error), text) in enumerate(zip(BUGS, texts, strict=True), start=1)
    ]

    rows = [row.text.strip() for row in found(None, {(8, 0): 1.0}, observations=failures).failed_rows()]

    assert rows == [
        "1: crashed: ValueError: 1 sample",
        "Traceback (most recent call last):",
        'File "train.py", line 3, in step',
        "run()",
        "2: crashed: ValueError: 2 samples",
        "3: crashed: KeyError: label",
        "Traceback (most recent call last):",
        'File "train.py", line 9, in step',
        "run()",
    ]


BUGS = [(3, "ValueError: 1 sample"), (3, "ValueError: 2 samples"), (9, "KeyError: label")]


FRAMES = "".join(f'  File "train.py", line {line}, in step_{line}\n    call_{line}()\n' for line in range(1, 8))


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        (
            f"Traceback (most recent call last):\n{FRAMES}ValueError: bits",
            'File "train.py", line 4, in step_4',
            "call_7()",
        ),
        ("no frame\n" * 3 + "the end", "no frame", "the end"),
    ],
)
def test_a_failure_is_told_once_with_whole_frames_of_the_user(text, first, last):
    crash = observed(16, outcome=Outcome.CRASHED, reason="ValueError: bits on rank 0", traceback_text=text)
    part = found(None, {(8, 0): 1.0}, observations=[crash])

    reason, *lines = [row.text for row in part.failed_rows()]

    assert reason == "16: crashed: ValueError: bits on rank 0"
    assert (lines[0].strip(), lines[-1].strip()) == (first, last)
