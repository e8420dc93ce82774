"""The second answer of random jobs."""

from __future__ import annotations

import pytest

from benchmarks.simulated_jobs import Found, draw_job, explored, found, load
from bexplore.exploration.base import find_sizes_that_keep
from bexplore.search.space import candidate_sizes
from tests.simulated.simulator import Family

SEEDS = range(4)


@pytest.fixture(scope="module")
def random_jobs() -> list[Found]:
    return list(found(Family, SEEDS))


def test_a_random_jobs_second_answer_keeps_the_batch_size_and_ran_exactly(random_jobs):
    assert all(job.is_valid for job in random_jobs)
    assert all(job.ran_exactly for job in random_jobs)


def test_a_random_jobs_second_answer_is_the_fastest_valid_one(random_jobs):
    assert sum(job.is_best for job in random_jobs) >= 0.95 * len(random_jobs)


def test_no_random_job_ends_with_a_size_that_was_not_seen_to_run(random_jobs):
    for job in random_jobs:
        ran = {item.micro_batch_size for item in job.observations if item.is_measured}
        assert {job.result.recommendation.micro_batch_size, job.second.micro_batch_size} <= ran


@pytest.mark.parametrize(
    ("batch_size", "replicas", "fields", "sizes"),
    [
        (96, 3, {"max": 64}, (1, 2, 4, 8, 16, 32)),
        (96, 3, {"max": 64, "candidates": "powers_of_two", "min": 2}, (2, 4, 8, 16, 32)),
        (96, 3, {"max": 64, "candidates": [1, 3, 8, 48]}, (1, 8)),
        (12300, 1, {"max": 8000}, (1, 2, 3, 4, 5, 6, 10, 12)),
        (100, 3, {"divisibility": "even"}, (1, 2, 3)),
        (100, 3, {}, None),
        (None, 3, {}, None),
    ],
)
def test_sizes_that_keep_a_batch_divide_a_replicas_share_within_bounds(batch_size, replicas, fields, sizes):
    job = draw_job(0)
    job |= {"train_input": {"batch_size": batch_size, "micro_batch_size": "explore"}}
    job |= {"runconfig": {"num_csx": replicas}, "explore": fields | {"workload": {"step": "shop.gan:make_step"}}}
    config = load(job)
    candidates = candidate_sizes(config.candidates, minimum=config.minimum, maximum=config.maximum or 4096)
    keeping = find_sizes_that_keep(config, candidates)

    assert (keeping and keeping.sizes[: len(sizes)]) == sizes
    if batch_size == 12300:
        assert keeping.sizes[-2:] == (4100, 6150)
        assert 4100 not in candidates


def test_a_random_jobs_recommendation_ignores_its_batch_size():
    job = draw_job(3000)
    answers = []
    for batch_size in (48, 4096, 999):
        job["train_input"]["batch_size"], job["runconfig"]["num_csx"] = batch_size, 1
        job["explore"] |= {"candidates": "powers_of_two", "max": 1024}
        answers.append(explored(load(job), 3000, Family.SMOOTH).result.recommendation.micro_batch_size)
    assert len(set(answers)) == 1
