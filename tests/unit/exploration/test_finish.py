"""What is found out once the search has ended, with a runner whose eager passes are known."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bexplore import load_config
from bexplore.exploration import run_directory
from bexplore.exploration.finish import Finish
from bexplore.exploration.result import RunResult
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe, Purpose
from bexplore.output.summary import summary_text
from bexplore.search.policy.economics import NextProbe
from bexplore.search.recommendation import Recommendation
from bexplore.search.result import Result
from tests.builders import JOBS

SIZE = 8


class KnownRunner:
    """Answers with given seconds of compiled turns; eager ones take a second."""

    def __init__(self, compiled_s: Sequence[float], folder: Path) -> None:
        self._compiled_s = compiled_s
        self.settings = SimpleNamespace(artifacts_dir=lambda size: folder / f"micro_batch_size_{size}")
        self.asked: list[dict[str, Any]] = []

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
) -> tuple[RunResult, KnownRunner]:
    """The result whose size was run exactly, and the runner that was asked."""
    (folder / "programs.py").write_text((JOBS / "programs.py").read_text())
    (folder / "job.yaml").write_text(
        "train_input: {batch_size: 64, micro_batch_size: explore}\n"
        f"explore:\n  device: cpu\n  compile: {enabled}\n"
        '  workload: {model: "programs:perceptron", batch: "programs:samples", loss: "programs:cross_entropy"}\n'
    )
    run = run_directory.create_run(folder / "runs", meta={}, now=datetime(2026, 1, 2, tzinfo=UTC))
    probe = Probe(number=0, micro_batch_size=SIZE, compilation=Compilation.EXACT, purpose=Purpose.VERIFY)
    run.journal.append(Observation(probe=probe, outcome=Outcome.MEASURED, pass_times_s=(1.0, 1.0), num_graphs=2))
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
        stop_reason="nothing_left",
        recommendation=best,
        base_micro_batch_size=SIZE,
        outcomes={"measured": 1},
        next_probe=next_probe,
    )
    return conclusion.result(result), runner


def eager_words(result: RunResult) -> str:
    text = summary_text(result, yaml_key="train_input.micro_batch_size", tolerance=0.02)
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
    assert result.eager.low < result.eager.over_compiled < result.eager.high


@pytest.mark.parametrize(
    ("compiled_s", "is_told"),
    [((1.1, 1.11, 1.1, 1.09, 1.1), True), ((0.3, 0.9, 1.1, 1.05, 2.2), False), ((0.9,) * 5, False), ((1.5,), False)],
)
def test_a_look_that_nobody_asked_for_speaks_only_where_its_interval_says_faster(tmp_path, compiled_s, is_told):
    result, runner = concluded(tmp_path, compiled_s, enabled="true")

    assert bool(eager_words(result)) is is_told
    assert runner.asked[0]["max_s"] == 50.0  # a twentieth of the exploration


def test_a_look_that_would_take_too_long_is_not_begun(tmp_path):
    result, runner = concluded(tmp_path, (1.5,) * 5, enabled="true", elapsed_s=60.0)

    assert (result.eager, runner.asked) == (None, [])


def test_the_result_tells_what_is_left_to_gain_and_what_another_probe_would_cost_and_save(tmp_path):
    further = NextProbe(micro_batch_size=4, saves=0.002, cost_s=40.0, training_time_s=36_000.0)
    told = ("left_to_gain", "training_time_s", "next_probe_s", "next_probe_saves", "training_samples")

    result, _ = concluded(tmp_path, (1.0,), next_probe=further)
    assert [getattr(result, name) for name in told] == [0.006, 36_000.0, 40.0, 0.002, None]

    (tmp_path / "apart").mkdir()
    result, _ = concluded(tmp_path / "apart", (1.0,))
    assert [getattr(result, name) for name in told] == [0.006, None, None, None, None]
