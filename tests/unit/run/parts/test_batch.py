"""The global batch sizes that are valid with an answer."""

from __future__ import annotations

import pytest

from bexplore.run.parts.batch import BatchPart, ValidBatchSize


@pytest.mark.parametrize(("own", "nearest"), [(None, 6), (6, 6), (16, 18), (24, 24), (400, 30)])
def test_the_valid_size_nearest_to_the_user_s_own_is_that_whose_step_is_judged(own, nearest):
    sizes = [
        ValidBatchSize(
            global_batch_size=6 * steps, accumulation_steps=steps, num_tokens=None, step_time_s=None, is_measured=False
        )
        for steps in range(1, 6)
    ]

    found = BatchPart(global_batch_sizes=tuple(sizes), batch_size=own).nearest

    assert found.global_batch_size == nearest
    assert BatchPart(batch_size=own).nearest is None
