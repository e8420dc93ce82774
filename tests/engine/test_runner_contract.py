"""The contract of runners, for the engine on real workers; they stay warm from test to test."""

from __future__ import annotations

import pytest

from tests.builders import imported_job
from tests.runner_contract import RunnerContract, Subject

MIB = 2**20


class TestEngineRunner(RunnerContract):
    """Real workers."""

    @pytest.fixture
    def subject(self, warm_on):
        runner = warm_on(imported_job("greedy"), budget_bytes=512 * MIB)
        return Subject(runner=runner, fitting=(1, 2, 4), too_large=100)
