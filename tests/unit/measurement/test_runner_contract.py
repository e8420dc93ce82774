"""The contract of runners, for those that need no device: a recorded table, a simulated world."""

from __future__ import annotations

import numpy as np
import pytest

from bexplore.replay.replay import ReplayOptions, TableRunner
from bexplore.replay.table import Curve, Point
from bexplore.search.space import MemoryPrior, Space
from tests.simulated.simulator import Family, SimulatedRunner, World
from tests.unit.measurement.runner_contract import RunnerContract, Subject
from tests.unit.search.builders import GIB, CurveRunner, saturating

SIZES = (1, 4, 16, 64)


class TestTableRunner(RunnerContract):
    """A recorded table."""

    @pytest.fixture
    def subject(self):
        points = {
            size: Point(
                throughputs=(saturating(size),) if size < 64 else (),
                pass_time_s=size / saturating(size),
                peak_memory_bytes=size * GIB // 32,
            )
            for size in SIZES
        }
        options = ReplayOptions(shared_compile=True, memory_hint_gib=1.0)
        return Subject(runner=TableRunner(Curve(curve_id="a", points=points), options), fitting=SIZES[:3], too_large=64)


@pytest.mark.parametrize("subject", [0.0, 0.05], ids=["a quiet machine", "a drifting machine"], indirect=True)
class TestSimulatedRunner(RunnerContract):
    """A simulated world, with and without interleaved timing."""

    @pytest.fixture
    def subject(self, request):
        sizes = np.array(SIZES, dtype=float)
        world = World(
            family=Family.SMOOTH,
            space=Space.from_sizes(SIZES),
            log_throughput=np.log([saturating(size) / 100 for size in SIZES]),  # long passes: one is timed at a time
            peak_bytes=sizes * GIB / 32,
            budget_bytes=GIB,
            memory=MemoryPrior(peak_bytes=lambda size: size * GIB / 32, budget_bytes=GIB),
            run_sd=0.01,
            pass_sd=0.01,
            common_mode_sd=request.param,
        )
        runner = SimulatedRunner(world, seed=3, shared_compile=True)
        return Subject(runner=runner, fitting=SIZES[:3], too_large=64)


class TestCurveRunner(RunnerContract):
    """The runner that the tests of the search use."""

    @pytest.fixture
    def subject(self):
        return Subject(runner=CurveRunner(largest=16), fitting=SIZES[:3], too_large=64)

    test_a_warm_program_costs_no_start_and_a_fresh_worker_does = None  # it has none
