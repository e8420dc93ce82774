"""A pytest plugin: a user's own test suite asserts on the exact facts of a training job.

    def test_the_job_compiles_as_it_did(bexplore_guard):
        bexplore_guard("configs/job.yaml", baseline="configs/job.guard.json")

    def test_the_job_has_no_graph_break(bexplore_facts):
        assert bexplore_facts("configs/job.yaml").num_graph_breaks == 0

`pytest --bexplore-update` writes the baselines anew. Every pytest session of the environment loads this file: nothing
heavy is imported before a fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from bexplore.guard import Report
    from bexplore.trace.program_metrics import ProgramMetrics


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--bexplore-update`."""
    group = parser.getgroup("bexplore")
    group.addoption("--bexplore-update", action="store_true", help="write the baselines of bexplore_guard anew")


@pytest.fixture
def bexplore_guard(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Report | None]:
    """A function that fails the test unless a job's exact facts are those of its baseline.

    `bexplore_guard(config, *, baseline, overrides=(), portable=False)`; paths are relative to pytest's root. Only
    exact facts are compared, never times; `portable` leaves it at those that are the same on every machine. With
    another toolchain than the baseline's the test is skipped: what moved with it is nobody's fault. Returns the report;
    None where the baseline was written anew.
    """

    def check(
        config: str | Path, *, baseline: str | Path, overrides: tuple[str, ...] = (), portable: bool = False
    ) -> Report | None:
        from bexplore.config.load import load_config
        from bexplore.guard import Tier, Verdict
        from bexplore.guard.guard import EXACT, GuardOptions, guard, update_baseline
        from bexplore.output.guard_table import guard_table

        root = request.config.rootpath
        options = GuardOptions(
            baseline_path=root / baseline,
            tiers=frozenset({Tier.ANY_MACHINE}) if portable else EXACT,
            model_dir=str(tmp_path / "model_dir"),
        )
        loaded = load_config(root / config, overrides=overrides)
        if request.config.getoption("--bexplore-update"):
            update_baseline(loaded, options)
            return None
        report = guard(loaded, options)
        if report.verdict is not Verdict.UNCHANGED:
            told = guard_table(report) + "\n  renew it with: pytest --bexplore-update"
            if report.verdict in (Verdict.TOOLCHAIN_CHANGED, Verdict.INCONCLUSIVE):
                pytest.skip(told)  # of the user's own test: it was not decided, which is no failure
            pytest.fail(told, pytrace=False)
        return report

    return check


@pytest.fixture
def bexplore_facts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., ProgramMetrics]]:
    """A function that gives the exact facts of a job: `bexplore_facts(config, overrides=())`.

    The same configuration is looked at once a test.
    """
    known: dict[tuple[str, tuple[str, ...]], ProgramMetrics] = {}

    def facts(config: str | Path, overrides: tuple[str, ...] = ()) -> ProgramMetrics:
        from bexplore.config.load import load_config
        from bexplore.engine.metrics_client import metrics_in_worker

        key = (str(config), tuple(overrides))
        if key not in known:
            loaded = load_config(request.config.rootpath / config, overrides=overrides).on_device("cpu")
            known[key], _ = metrics_in_worker(loaded.job, tmp_path / "facts.log", device="cpu")
        return known[key]

    yield facts
