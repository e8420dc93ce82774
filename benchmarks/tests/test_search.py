"""The benchmark of the search: what a partial run leaves as it was."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from benchmarks import search
from benchmarks.search_problems import Answer, answered, simulated_problems
from benchmarks.search_statistics import relative_performance, shortfalls_held
from tests.simulated.simulator import Family

KNOWN = {
    "methods": {"public": {"bexplore": "known"}, "wandering": {"bexplore": "known"}},
    "public_families": {"zeus": "known"},
    "decision_time": "known",
    "first_seed": search.FIRST_SEED,
    "facts": {"command": "python -m benchmarks.search", "date": "yesterday", "revision": "abc"},
}


def test_a_partial_run_replaces_its_parts_and_tells_where_all_else_is_from():
    new = {"methods": {"wandering": {"bexplore": "new"}}, "public_families": {}, "facts": {"date": "today"}}

    once = search.joined(KNOWN, new)
    twice = search.joined(once | {"facts": once["facts"] | {"command": "c", "revision": "d"}}, new)

    assert once["methods"] == {"public": {"bexplore": "known"}, "wandering": {"bexplore": "new"}}
    assert (once["public_families"], once["decision_time"]) == ({"zeus": "known"}, "known")
    assert once["facts"] == {"date": "today", "all_else": "python -m benchmarks.search, yesterday, abc"}
    assert twice["facts"]["all_else"] == "c, today, d; python -m benchmarks.search, yesterday, abc"


def test_an_answer_within_a_wider_tie_is_right_and_the_score_says_so(monkeypatch):
    monkeypatch.setattr(search, "WORLDS_OF_TOLERANCES", {search.Family.SMOOTH: False})
    monkeypatch.setattr(search, "OTHER_TOLERANCES", (0.02, 0.5))

    strict, _, everything, smooth = search.tolerances(6, search.FIRST_SEED)

    assert (everything["world"], smooth["world"], smooth["tolerance"]) == ("all", "smooth", 0.5)
    assert smooth["score_90_true"][0] == 1.0
    assert smooth["mean_probes"][0] < strict["mean_probes"][0]


def answer(confidence: int, *regrets: tuple[int, float, float]) -> Answer:
    return Answer(
        regret=regrets[-1][2],
        num_probes=1,
        num_out_of_memory=0,
        cost_s=1.0,
        exhaustive_cost_s=1.0,
        confidence=confidence,
        regrets=regrets,
    )


def test_the_distance_that_low_scores_tell_is_compared_with_the_true():
    ended_high = answer(95, (20, 0.9, 0.5), (60, 0.08, 0.09), (95, 0.01, 0.0))
    ended_low = answer(80, (55, 0.1, 0.05), (80, 0.03, 0.02))

    found = shortfalls_held([ended_high, ended_low])

    assert (found["messages"], found["ended"], found["ended_held"]) == (3, 1, 1.0)
    assert found["held"][0] == pytest.approx(2 / 3)
    assert found["median"] == 0.08


def test_parts_of_other_problems_are_not_joined(tmp_path, monkeypatch):
    monkeypatch.setattr(search, "RESULTS", tmp_path)
    (tmp_path / "search.json").write_text(json.dumps(KNOWN))

    with pytest.raises(SystemExit, match="has no results for worlds from seed 7"):
        search.main(["--only", "decision-time", "--first-seed", "7"])


def test_the_relative_performance_that_was_told_is_compared_with_the_true():
    base = answer(95, (95, 0.01, 0.0))
    answers = [
        dataclasses.replace(base, relative_error=math.log(1.05), interval_holds=True),
        dataclasses.replace(base, relative_error=math.log(0.5), interval_holds=False),
        dataclasses.replace(base, relative_error=0.0),
        base,
    ]

    found = relative_performance(answers)

    assert found["within_10_percent"][0] == pytest.approx(2 / 3)
    assert found["interval_holds"][0] == 0.5


def test_relative_performance_is_compared_with_the_worlds_own_curve():
    for problem in simulated_problems(Family.SMOOTH, 3, first_seed=search.FIRST_SEED):
        found = answered(problem)

        assert abs(found.relative_error) < 0.1
