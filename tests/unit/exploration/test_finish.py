"""What is found out once the search has ended, with a runner whose eager passes are known."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bexplore import load_config
from bexplore.exploration.finish import Finish
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe, Purpose
from bexplore.output.summary import summary_text
from bexplore.run import run_directory
from bexplore.run.facts import step_time_s, verified_by
from bexplore.run.parts.search import group_failures
from bexplore.run.result import RunResult
from bexplore.search.policy.decision import NextProbe, StopReason
from bexplore.search.recommendation import Recommendation
from bexplore.search.result import Result
from tests.builders import JOBS, observed

SIZE = 8


class KnownRunner:
    """Answers with given seconds of compiled rounds; eager ones take a second."""

    def __init__(self, compiled_s: Sequence[float], folder: Path) -> None:
        self._compiled_s = compiled_s
        self.settings = SimpleNamespace(artifacts_dir=lambda size: folder / f"micro_batch_size_{size}")
        self.asked: list[dict[str, Any]] = []
        self.gradients_asked: list[dict[str, int]] = []

    def gradient_equivalence(self, **sizes: int) -> dict[str, Any]:
        self.gradients_asked.append(sizes)
        return {"verdict": "same", "message": "The gradients agree."}

    def time_loader(self, micro_batch_size: int) -> dict[str, Any]:
        sizes = {"micro_batch_size": micro_batch_size, "largest_batch": micro_batch_size}
        return {**sizes, "samples_per_s": 4.0, "num_workers": 0, "problem": ""}

    def compare_eager(self, **search_specification: Any) -> dict[str, Any]:
        self.asked.append(search_specification)
        return {
            "compiled_timings": [(1, seconds) for seconds in self._compiled_s],
            "eager_timings": [(1, 1.0) for _ in self._compiled_s],
            "eager_peak_memory_bytes": None,
        }


def concluded(
    folder: Path,
    compiled_s: Sequence[float],
    *,
    enabled: str = "both",
    elapsed_s: float = 1000.0,
    next_probe: NextProbe | None = None,
    others: Sequence[Observation] = (),
    stop_reason: StopReason = StopReason.NOTHING_LEFT,
    loader: str = "",
    settings: str = "",
    details: Mapping[str, Any] | None = None,
) -> tuple[RunResult, KnownRunner]:
    """The result whose size was run exactly, and the runner that was asked."""
    (folder / "programs.py").write_text((JOBS / "programs.py").read_text())
    (folder / "job.yaml").write_text(
        "train_input: {batch_size: 64, micro_batch_size: explore}\n"
        f"explore:\n  device: cpu\n  compile: {enabled}\n{settings}"
        '  workload: {model: "programs:perceptron", batch: "programs:samples", loss: "programs:cross_entropy"'
        + f"{loader}}}\n"
    )
    run = run_directory.create_run(folder / "runs", meta={}, now=datetime(2026, 1, 2, tzinfo=UTC))
    for item in others:
        run.journal.append(item)
    probe = Probe(number=0, micro_batch_size=SIZE, compilation=Compilation.EXACT, purpose=Purpose.VERIFY)
    ran = Observation(
        probe=probe, outcome=Outcome.MEASURED, pass_times_s=(1.0, 1.0), num_graphs=2, details=dict(details or {})
    )
    run.journal.append(ran)
    best = Recommendation(
        micro_batch_size=SIZE,
        relative_performance=1.0,
        confidence=95,
        samples_per_s=8.0,
        smallest_within_tolerance=SIZE,
        base_micro_batch_size=SIZE,
        num_probes=1,
        left_to_gain=0.006,
    )
    runner = KnownRunner(compiled_s, folder / "compiled")
    conclusion = Finish(
        config=load_config(folder / "job.yaml"),
        runner=runner,
        run=run,
        cost_model=None,
        device_info={},
        elapsed_s=lambda: elapsed_s,
    )
    result = Result(
        stop_reason=stop_reason,
        recommendation=best,
        base_micro_batch_size=SIZE,
        outcomes={"measured": 1},
        next_probe=next_probe,
    )
    return conclusion.result(result), runner


def eager_words(result: RunResult) -> str:
    text = summary_text(result, tolerance=0.02)
    return next((line for line in text.splitlines() if line.startswith("  eager ")), "")


@pytest.mark.parametrize(
    ("compiled_s", "told"),
    [
        (
            (1.10, 1.11, 1.10, 1.09, 1.10),
            "1.10x the speed (95% interval 1.09 to 1.11; 5 rounds, 5.00 s, of each): do not",
        ),
        (
            (0.90, 0.91, 0.90, 0.89, 0.90),
            "0.90x the speed (95% interval 0.89 to 0.91; 5 rounds, 4.50 s, of each): keep",
        ),
        ((0.30, 0.90, 1.10, 1.05, 2.20), "5 rounds, 5.00 s, of each): too uncertain to decide whether compiling pays"),
        ((1.00, 1.01, 1.00, 0.99, 1.00), "within 2% that is as fast, so that compiling gains nothing"),
    ],
)
def test_compile_both_tells_the_interval_and_decides_by_it(tmp_path, compiled_s, told):
    result, _ = concluded(tmp_path, compiled_s)

    assert told in eager_words(result)
    assert result.program.eager.low < result.program.eager.over_compiled < result.program.eager.high


def test_eager_passes_are_not_timed_where_nobody_asks_for_them(tmp_path):
    result, runner = concluded(tmp_path, (1.1,) * 5, enabled="true")

    assert (result.program.eager, runner.asked) == (None, [])


def test_the_result_tells_what_is_left_to_gain_and_what_another_probe_would_cost_and_save(tmp_path):
    further = NextProbe(
        index=2, micro_batch_size=4, saves=0.002, cost_s=40.0, training_time_s=36_000.0, least_times=4.0
    )
    of_probe = ("next_probe_s", "next_probe_saves", "next_probe_must_save")
    told = ("left_to_gain", "training_time_s", *of_probe, "training_samples")

    result, _ = concluded(tmp_path, (1.0,), next_probe=further)
    assert [getattr(result.answer, name) for name in told] == [0.006, 36_000.0, 40.0, 0.002, 4.0, None]

    (tmp_path / "apart").mkdir()
    result, _ = concluded(tmp_path / "apart", (1.0,))
    assert [getattr(result.answer, name) for name in told] == [0.006, None, None, None, None, None]


def test_gradients_are_compared_with_those_of_the_smallest_size_that_ran(tmp_path):
    others = [observed(4), observed(2), observed(1, outcome=Outcome.CRASHED, pass_times_s=())]
    result, runner = concluded(tmp_path, (1.0,), others=others)

    assert runner.gradients_asked == [{"base_micro_batch_size": 2, "micro_batch_size": SIZE}]
    assert result.checks.gradient_equivalence == {"verdict": "same", "message": "The gradients agree."}


def test_gradients_of_the_only_size_that_ran_are_compared_with_nothing(tmp_path):
    result, runner = concluded(tmp_path, (1.0,))

    assert (result.checks.gradient_equivalence, runner.gradients_asked) == (None, [])


@pytest.mark.parametrize(("loader", "timed"), [('loader: "programs:perceptron"', SIZE), ("", None)])
def test_a_loader_is_timed_at_the_recommended_size_where_the_configuration_names_one(tmp_path, loader, timed):
    result, _ = concluded(tmp_path, (1.0,), loader=f", {loader}" if loader else "")

    assert (result.checks.loader or {}).get("micro_batch_size") == timed


def test_artifacts_of_the_recommended_size_are_kept_and_those_of_others_deleted(tmp_path):
    for size in (SIZE, 2):
        (tmp_path / "compiled" / f"micro_batch_size_{size}" / "fx").mkdir(parents=True)
        (tmp_path / "compiled" / f"micro_batch_size_{size}" / "fx" / "graph").touch()

    result, _ = concluded(tmp_path, (1.0,))

    assert result.program.artifacts_dir == str(tmp_path / "compiled" / f"micro_batch_size_{SIZE}")
    assert [path.name for path in (tmp_path / "compiled").iterdir()] == [f"micro_batch_size_{SIZE}"]


def test_an_interrupted_run_measures_nothing_more_and_its_result_is_not_written(tmp_path):
    result, runner = concluded(tmp_path, (1.0,), others=[observed(2)], stop_reason=StopReason.INTERRUPTED)

    assert result.micro_batch_size == SIZE
    assert (result.program.eager, result.checks.gradient_equivalence, runner.asked, runner.gradients_asked) == (
        None,
        None,
        [],
        [],
    )
    assert list((tmp_path / "runs").rglob("result.json")) == []


def test_a_finished_run_has_its_result_on_disk(tmp_path):
    concluded(tmp_path, (1.0,))

    assert len(list((tmp_path / "runs").rglob("result.json"))) == 1


def test_failures_that_differ_in_numbers_alone_are_one_group():
    def failed(size: int, reason: str, outcome: Outcome = Outcome.CRASHED) -> Observation:
        return observed(size, outcome=outcome, reason=reason, pass_times_s=())

    alike = [failed(8, "shape 8"), failed(4, "shape 4"), failed(4, "shape 4")]
    groups = group_failures(
        [*alike, observed(1), failed(2, "other"), failed(16, "shape 16", Outcome.NOT_FINITE)],
    )

    assert [(group.outcome, group.reason, group.micro_batch_sizes) for group in groups] == [
        ("crashed", "shape 8", (4, 8)),
        ("crashed", "other", (2,)),
        ("not_finite", "shape 16", (16,)),
    ]


def test_a_size_is_verified_by_its_latest_exact_observation_or_else_by_its_latest():
    shared, later = observed(4, number=0), observed(4, number=1)
    exact = Observation(
        probe=Probe(number=2, micro_batch_size=4, compilation=Compilation.EXACT), outcome=Outcome.MEASURED
    )
    failed = observed(4, number=3, outcome=Outcome.CRASHED, pass_times_s=())

    assert verified_by([exact, shared, later, failed], 4) is exact
    assert verified_by([shared, later, failed], 4) is later
    assert verified_by([failed, observed(8)], 4) is None


def test_an_eager_size_is_verified_by_the_process_that_ran_no_other():
    shared = observed(4, number=0)
    alone = dataclasses.replace(
        shared, probe=dataclasses.replace(shared.probe, number=1, compilation=Compilation.EAGER)
    )

    assert verified_by([shared, alone, observed(4, number=2)], 4) is alone


def test_a_step_takes_its_passes_and_one_update():
    assert step_time_s(observed(4, pass_times_s=(0.5,), update_times_s=(0.25,)), 3) == 1.75
    assert step_time_s(observed(4, pass_times_s=(0.5,)), 3) == 1.5
    assert step_time_s(observed(4, outcome=Outcome.CRASHED, pass_times_s=()), 3) is None
    assert step_time_s(None, 3) is None


RANKS = "  parallelism: {data_parallel_shard_degree: 2}\n"
OF_KINDS = {"accumulation_steps": 4, "pass_times_by_kind_s": [[0.75, 1.75]], "products_per_s": 1.0}


def test_one_rank_of_several_leaves_its_passes_in_the_result_and_a_caution_before_all_others(tmp_path):
    result, _ = concluded(tmp_path, (1.0,), settings=RANKS, details={"parallel": OF_KINDS})

    assert result.parallel is not None
    assert (result.parallel.num_ranks, result.parallel.inner_pass_s, result.parallel.last_pass_s) == (2, 0.75, 1.75)
    assert result.warnings[0].startswith("one rank of 2: the times hold no communication")
    times_s = {size.accumulation_steps: size.step_time_s for size in result.batch.global_batch_sizes}
    assert times_s[4] == pytest.approx(3 * 0.75 + 1.75)
    assert times_s[5] == pytest.approx(4 * 0.75 + 1.75)


def test_all_ranks_leave_no_caution(tmp_path):
    ranks = {"ranks": [{"rank": 0, "host": "node1"}, {"rank": 1, "host": "node2"}], "launcher": "srun"}
    result, _ = concluded(tmp_path, (1.0,), settings=RANKS, details={"parallel": OF_KINDS | ranks})

    assert result.parallel is not None
    assert (result.parallel.hosts, result.parallel.launcher) == (("node1", "node2"), "srun")
    assert result.warnings == ()


def test_a_job_of_one_device_leaves_no_ranks(tmp_path):
    assert concluded(tmp_path, (1.0,))[0].parallel is None
