"""The seconds that a stage of a probe may take."""

from __future__ import annotations

from pathlib import Path

from bexplore.config.load import load_config
from bexplore.engine.process.limits import COMPILE_FLOOR_S, FIRST_LIMITS_S, PATIENCE, STAGE_FLOOR_S, StageLimits
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
    limits = StageLimits(floor_s=load_config(path).settings.stage_time_floor)
    limits.learn(observed(4, pass_times_s=(0.001,), compile_time_s=1.0))

    assert {limits.limit_s(stage, 4) for stage in ("start", "import", "build", "compile", "passes")} == {7200.0}


def test_a_compilation_may_take_as_the_longest_one_and_its_pass():
    limits = StageLimits()
    limits.learn(observed(4, pass_times_s=(4.0,), compile_time_s=100.0))
    limits.learn(observed(2, pass_times_s=(1.0,), compile_time_s=60.0))

    assert limits.limit_s("compile", 4) == PATIENCE * 104.0
    assert limits.limit_s("compile", 8) == PATIENCE * 108.0


def test_stages_before_the_program_keep_their_limit_when_it_learns():
    limits = StageLimits()
    limits.learn(observed(4, pass_times_s=(100.0,), compile_time_s=1000.0))

    for stage in ("start", "import", "build"):
        assert limits.limit_s(stage, 64) == FIRST_LIMITS_S[stage]


def test_another_program_has_the_settings_and_none_of_what_was_learned():
    limits = StageLimits(step_limit_s=7.0, floor_s=1.0)
    limits.learn(observed(4, pass_times_s=(100.0,), compile_time_s=1000.0))

    assert limits.limit_s("passes", 4) == PATIENCE * 100.0
    assert limits.unlearned().limit_s("passes", 4) == 7.0
    assert limits.unlearned().limit_s("compile", 4) == FIRST_LIMITS_S["compile"]
