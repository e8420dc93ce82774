from __future__ import annotations

import json

import pytest

from benchmarks.plan_steps import (
    ACCUMULATIONS,
    NAMES,
    RECORDS,
    REPEATS,
    WITHIN,
    paired_errors,
    share_beyond,
    table,
    worst_median,
)

RECORDED = json.loads(RECORDS.read_text())


def pair(planned_s: float, measured_s: float) -> dict:
    row = {"micro_batch_size": 8, "planned_s": planned_s, "measured_s": measured_s}
    return {str(steps): row | {"accumulation_steps": steps} for steps in ACCUMULATIONS}


def test_both_jobs_were_planned_and_trained_as_often_as_the_median_needs():
    assert {name: len(pairs) for name, pairs in RECORDED.items()} == dict.fromkeys(NAMES, REPEATS)


def test_the_median_error_of_every_job_and_accumulation_is_within_the_limit():
    assert worst_median(RECORDED) <= WITHIN


def test_the_error_is_that_of_pairs_and_not_of_the_medians_of_columns():
    pairs = [pair(10.0, 10.0), pair(20.0, 10.0), pair(30.0, 30.0)]
    assert paired_errors(pairs, 1) == pytest.approx([0.0, 1.0, 0.0])
    assert worst_median({"a": pairs}) == 0.0
    assert share_beyond({"a": pairs}) == pytest.approx(1 / 3)
    assert "| a | 8 | 1 | 20.00 | 10.00 | +0.0 (+0.0 to +100.0) | 1 of 3 |" in table({"a": pairs})
