"""The seconds that a stage of a probe may take."""

from __future__ import annotations

from pathlib import Path

from bexplore.config.load import load_config
from bexplore.engine.process.timeouts import COMPILE_FLOOR_S, FIRST_LIMITS_S, PATIENCE, STAGE_FLOOR_S, StageLimits
from bexplore.measurement.probe import Outcome
from tests.builders import observed

# Time


def test_a_stage_may_take_what_the_trace_says_until_probes_say_more():
    slow, plain = StageLimits(flops_per_sample=1e12), StageLimits()

    assert plain.limit_s("passes", 8) == 900.0
    assert slow.limit_s("passes", 8) == 8000.0
    slow.learn(observed(4, pass_times_s=(2.0, 4.0)))
    assert slow.limit_s("passes", 8) == PATIENCE * 8.0
    assert slow.limit_s("passes", 1) == PATIENCE * 4.0


def test_short_stages_have_floors_and_failed_probes_teach_nothing():
    limits = StageLimits()
    limits.learn(observed(4, outcome=Outcome.TIMED_OUT, pass_times_s=()))
    assert limits.limit_s("compile", 4) == FIRST_LIMITS_S["compile"]
    limits.learn(observed(4, pass_times_s=(0.001,), compile_time_s=1.0))
    assert limits.limit_s("passes", 4) == STAGE_FLOOR_S
    assert limits.limit_s("compile", 4) == COMPILE_FLOOR_S


def test_the_floor_of_the_stages_is_the_users_to_set(tmp_path):
    path = tmp_path / "job.yaml"
    job = Path("configs/quickstart.yaml").read_text()
    path.write_text(job.replace("\nexplore:\n", "\nexplore:\n    stage_time_floor: 2h\n"))
    limits = StageLimits(floor_s=load_config(path).explore.stage_time_floor)
    limits.learn(observed(4, pass_times_s=(0.001,), compile_time_s=1.0))

    assert {limits.limit_s(stage, 4) for stage in ("start", "import", "build", "compile", "passes")} == {7200.0}
