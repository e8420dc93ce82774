"""The benchmark of the search: what tuning costs in all, what noise does, and recommendations against measurements."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Sequence

import pytest

from benchmarks import readme_tables, search, search_total_cost
from benchmarks.search_never_below import below, is_below, never_below, watched
from benchmarks.search_problems import Answer, Problem, answered, explored, public_problems
from benchmarks.search_report import markdown
from benchmarks.search_statistics import summary
from benchmarks.search_total_cost import AS_IT_WORKS, EACH_COMPILED, OURS, TRAINING_S, costs_of, totals
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe
from bexplore.replay.table import Curve, Point
from bexplore.search.space import Space
from tests.simulated.simulator import Family, draw_world

KNOWN = json.loads((search.RESULTS / "search.json").read_text())


def sweep(**throughputs: float) -> Problem:
    """A recorded sweep of `at_SIZE=samples/s`; 0 for out of memory."""
    points = {
        int(name.removeprefix("at_")): Point(throughputs=(value,), pass_time_s=0.1) if value else Point()
        for name, value in throughputs.items()
    }
    return Problem("public", "a", 0, Curve(curve_id="a", points=points))


def measured(number: int, size: int, *passes_s: float) -> Observation:
    return Observation(
        probe=Probe(number=number, micro_batch_size=size), outcome=Outcome.MEASURED, pass_times_s=passes_s
    )


def answer(
    cost_s: float, exhaustive_cost_s: float, regret: float = 0.0, messages: Sequence[tuple[int, bool]] = ((95, True),)
) -> Answer:
    return Answer(
        regret=regret,
        num_probes=1,
        num_out_of_memory=0,
        cost_s=cost_s,
        exhaustive_cost_s=exhaustive_cost_s,
        confidence=95,
        messages=tuple(messages),
    )


def test_the_median_problems_cost_is_told_beside_the_sum():
    told = summary([answer(10, 100), answer(20, 100), answer(9_000, 10_000)])
    assert told["cost_over_exhaustive"][0] == pytest.approx(9_030 / 10_200)
    assert told["median_cost_over_exhaustive"][0] == pytest.approx(0.2)


def test_the_mean_regret_has_an_interval_around_it():
    told = summary([answer(1, 1, regret) for regret in (0.0, 0.0, 0.03)])
    value, low, high = told["mean_regret"]
    assert value == pytest.approx(0.01)
    assert 0.0 <= low < value < high <= 0.03


def test_the_worst_middle_band_is_of_scores_50_to_89_with_enough_messages():
    messages = [(55, i < 15) for i in range(30)] + [(85, False)] * 29 + [(95, False)] * 40 + [(5, True)] * 40
    told = summary([answer(1, 1, 0.0, messages)])
    assert told["worst_middle_band_points"] == pytest.approx(5.0)
    assert told["worst_low_band_points"] == pytest.approx(95.0)


def test_the_noise_of_a_problem_is_that_of_its_runner_whatever_its_source():
    for source in (draw_world(Family.FEW, 0, Space.from_sizes([1, 2, 4])), sweep(at_1=100.0, at_2=150.0).source):
        spreads = []
        for noise in (0.0, 0.05):
            runner = Problem("any", "any", 0, source, noise).runner(shared_compile=False)
            found = runner(Probe(number=0, micro_batch_size=2))
            spreads.append(max(found.pass_times_s) / min(found.pass_times_s) - 1.0)
        assert spreads[0] == pytest.approx(0.0, abs=1e-12)
        assert spreads[1] > 0.02


def test_recorded_sweeps_at_every_noise_are_told_by_group_and_together(monkeypatch):
    monkeypatch.setattr(search, "NOISE_SDS", (0.0, 0.05))
    few = list(public_problems(1, families=("gavel",)))[:6]
    asked = []

    def some(num_seeds: int, *, families: tuple[str, ...], noise: float) -> list[Problem]:
        asked.append((families, noise))
        return [dataclasses.replace(problem, noise=noise) for problem in few]

    monkeypatch.setattr(search, "public_problems", some)
    rows = search.noises(1)

    assert [(row["noise"], row["sweeps"], row["problems"]) for row in rows] == [
        (noise, *group) for noise in (0.0, 0.05) for group in (("all", 12), ("developed on", 6), ("not seen", 6))
    ]
    assert {noise for _, noise in asked} == {0.0, 0.05}


def test_a_size_that_does_not_fit_loses_all():
    assert sweep(at_1=100.0, at_2=0.0).regret(2) == 1.0


def test_a_recommendation_is_compared_with_the_mean_of_every_size():
    seen = [measured(0, 10, 1.0), measured(1, 10, 1.1), measured(2, 20, 2.0), measured(3, 20, 2.2)]
    assert below(seen, 10).share == pytest.approx(0.0)
    slower = [*seen, measured(4, 40, 3.8)]  # 40 / 3.8 = 10.5 samples/s against 10 / sqrt(1.1) = 9.5
    assert below(slower, 10).share == pytest.approx(1.0 - 3.8 / (4.0 * 1.1**0.5))
    assert is_below(below(slower, 10).share)
    assert below(slower, 40).share == 0.0


def test_what_probes_that_differ_allow_is_not_surely_below():
    apart, alike = (
        [measured(0, 10, a), measured(1, 10, b), measured(2, 20, 1.9)] for a, b in ((0.9, 1.2), (1.04,) * 2)
    )
    assert is_below(below(apart, 10).share)
    assert not is_below(below(apart, 10).share_surely)
    assert is_below(below(alike, 10).share_surely)


def test_each_recommendation_is_held_against_what_was_measured_until_then():
    runs = [watched(Problem("rough", "rough", seed, draw_world(Family.ROUGH, seed))) for seed in range(6)]
    assert all(run.streamed[0].share == 0.0 for run in runs)  # one size alone was measured
    assert all(run.streamed[-1] == run.ended for run in runs)


def test_explorations_of_every_family_are_told_together_and_apart():
    everything, *families = never_below(len(Family), search.FIRST_SEED)
    assert [row["world"] for row in families] == [family.value for family in Family]
    assert {row["explorations"] for row in families} == {1}
    assert everything["explorations"] == len(Family)
    assert everything["recommendations"] >= everything["explorations"]
    assert everything["ended_surely_below"] <= everything["ended_below"] <= everything["explorations"]


def test_bexplore_ends_with_the_winner_compiled_as_the_training_will_be():
    problem = Problem("smooth", "smooth", 3, draw_world(Family.SMOOTH, 3))
    found = explored(problem, shared_compile=True, verifies=True)
    kinds = [item.probe.compilation for item in found.observations]
    assert kinds[-1] is Compilation.EXACT
    assert found.observations[-1].micro_batch_size == found.best.micro_batch_size
    assert set(kinds[:-1]) == {Compilation.SHARED}
    assert sum(item.compile_time_s > 0 for item in found.observations) == 2


def test_the_cost_of_tuning_is_the_finders_seconds_and_its_answers_loss(monkeypatch):
    problem = Problem("cliffs", "cliffs", 5, draw_world(Family.CLIFFS, 5))
    monkeypatch.setattr(search_total_cost, "BASELINES", {"first": lambda bench: bench.run(1) and 1})
    costs = costs_of(problem)
    one = answered(problem)
    assert set(costs) == {*OURS, "first"}
    assert costs[EACH_COMPILED] == (one.cost_s, TRAINING_S * one.regret)
    assert costs["first"][1] == TRAINING_S * problem.regret(1) > 0.0
    assert costs[AS_IT_WORKS][0] != costs[EACH_COMPILED][0]


def test_nothing_has_a_cost_where_nothing_fits():
    assert costs_of(sweep(at_1=0.0, at_2=0.0)) is None


def test_ours_is_compared_with_the_cheapest_rival_of_a_set():
    found = [
        {AS_IT_WORKS: (10.0, 20.0), "quick": (10.0, 0.0), "sound": (50.0, 0.0)},
        {AS_IT_WORKS: (10.0, 20.0), "quick": (10.0, 180.0), "sound": (50.0, 0.0)},
        {AS_IT_WORKS: (10.0, 20.0), "quick": (10.0, 0.0), "sound": (50.0, 0.0)},
    ]
    told = totals(found, ["a", "b", "b"])
    assert (told["best_rival"], told["best_rival_by_median"], told["problems"], told["sources"]) == (
        "sound",
        "quick",
        3,
        2,
    )
    assert told["ratios"][AS_IT_WORKS]["sum"][0] == pytest.approx(90.0 / 150.0)
    assert told["ratios"][AS_IT_WORKS]["median"][0] == pytest.approx(30.0 / 10.0)
    assert told["methods"]["quick"]["lost_sum_s"] == 180.0


def report_with_costs() -> dict:
    """The known report with a row of each new part."""
    costs = {AS_IT_WORKS: (10.0, 20.0), EACH_COMPILED: (30.0, 20.0), "doubling": (50.0, 0.0), "largest": (9.0, 99.0)}
    report = copy.deepcopy(KNOWN)
    report["total_cost"] = [{"set": name} | totals([costs] * 2, ["a", "b"]) for name in search_total_cost.SETS]
    watched = never_below(1, 5)[:1]
    noise = summary([answer(1, 2)])
    return report | {"never_below": watched, "noises": [{"noise": 0.03, "sweeps": "not seen"} | noise]}


def test_the_page_begins_with_tuning_costs_and_has_a_row_for_each_part():
    page = markdown(report_with_costs())
    titles = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    assert titles[0] == "What tuning costs in all"
    assert {"Other noises", "Recommended against its own measurements"} < set(titles)
    assert "| cpu_like | 2 (2 curves or worlds) | doubling | 0.60 (0.60 to 0.60) |" in page
    assert "| 3% | not seen | 1 |" in page


def test_a_page_of_a_run_without_the_later_parts_leaves_them_out():
    rest = {key: value for key, value in KNOWN.items() if key not in ("total_cost", "noises", "never_below")}
    page = markdown(rest)
    assert "What tuning costs in all" not in page
    assert "## public" in page


def test_the_table_for_readers_has_ours_first_and_the_cheapest_others(monkeypatch, tmp_path):
    (tmp_path / "search.json").write_text(json.dumps(report_with_costs()))
    monkeypatch.setattr(readme_tables, "RESULTS", tmp_path)
    _, _, *rows = readme_tables.total().splitlines()
    assert len(rows) == 4 * 4
    assert rows[0] == (
        "| recorded sweeps on which the search was developed (2) | bexplore | 10 | 20 | 30 | 0.60 (0.60 to 0.60) |"
    )
    assert [row.split(" | ")[1] for row in rows[1:4]] == [EACH_COMPILED, "doubling", "largest"]
