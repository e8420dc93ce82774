from __future__ import annotations

import pytest

from benchmarks.published_trainings import TABLE, TRAININGS, WITHIN, ratio, table


@pytest.mark.parametrize("training", TRAININGS, ids=lambda one: one.name)
def test_the_plan_of_a_published_training_is_within_a_tenth_of_what_was_published(training):
    assert ratio(training) == pytest.approx(1.0, abs=WITHIN)


def test_the_table_is_that_of_the_present_arithmetic():
    assert TABLE.read_text() == table(TRAININGS)
