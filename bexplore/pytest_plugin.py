"""A pytest plugin: a user's own test suite asserts on the exact facts of a training job.

    def test_the_job_compiles_as_it_did(bexplore_guard):
        bexplore_guard("configs/job.yaml", baseline="configs/job.guard.json")

    def test_the_job_has_no_graph_break(bexplore_facts):
        assert bexplore_facts("configs/job.yaml").num_graph_breaks == 0

`pytest --bexplore-update` writes the baselines again. Every pytest session of the environment loads this file, so that
a fixture imports what it needs when a test uses it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--bexplore-update`."""
    group = parser.getgroup("bexplore")
    group.addoption("--bexplore-update", action="store_true", help="write the baselines of bexplore_guard again")


@contextmanager
def _told_in_short() -> Iterator[None]:
    """Fail the test with what an error of bexplore says, and the user's own traceback, in place of bexplore's."""
    from bexplore.errors import BexploreError, UserProgramError

    try:
        yield
    except BexploreError as error:
        own = error.traceback_text if isinstance(error, UserProgramError) else ""
        pytest.fail("\n".join(filter(None, (own, error.message, error.hint))), pytrace=False)


@pytest.fixture
def bexplore_guard(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    """Return a function that fails the test unless a job's exact facts equal those of its baseline.

    `bexplore_guard(config, *, baseline, overrides=(), portable=False)`; paths are relative to pytest's root. Only exact
    facts are compared, never times; `portable` compares those that are the same on every machine. With another
    toolchain than the baseline's the test is skipped, because the changes have another cause. The function returns the
    report; None where the baseline was written.
    """
    # Imported here: a session that does not use this fixture pays nothing.
    from bexplore.guard.guard import UNDECIDED, check_exact_facts
    from bexplore.output.guard_report import guard_table

    root, is_update = request.config.rootpath, request.config.getoption("--bexplore-update")

    def check(config: str | Path, *, baseline: str | Path, **options: Any) -> Any:
        with _told_in_short():
            report = check_exact_facts(
                root / config, root / baseline, model_dir=tmp_path / "model_dir", is_update=is_update, **options
            )
        if report is None or report.verdict == "unchanged":
            return report
        plain = dataclasses.replace(report, advice=())  # which is that of the command
        text = guard_table(plain) + "\n  renew it with: pytest --bexplore-update"
        if report.verdict in UNDECIDED:
            pytest.skip(text)  # of the user's own test: no decision is no failure
        pytest.fail(text, pytrace=False)

    return check


@pytest.fixture
def bexplore_facts(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    """Return a function that finds the exact facts of a job: `bexplore_facts(config, overrides=())`.

    A test traces the same configuration once.
    """
    from bexplore.guard.guard import find_portable_facts  # here for the same reason

    @functools.cache
    def find(config: str | Path, overrides: tuple[str, ...]) -> Any:
        with _told_in_short():
            return find_portable_facts(request.config.rootpath / config, tmp_path / "facts.log", overrides)

    return lambda config, overrides=(): find(config, tuple(overrides))
