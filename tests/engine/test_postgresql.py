"""A study in a PostgreSQL server that several explorers share, and that goes away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bexplore.errors import EngineError
from bexplore.measurement.probe import Observation, Outcome, Probe
from bexplore.run.journal import Journal
from bexplore.search import loop
from bexplore.search.settings import SearchSettings
from bexplore.search.space import Space
from tests.engine import postgres

pytestmark = [
    pytest.mark.external,
    pytest.mark.skipif(bool(postgres.missing()), reason=postgres.missing() or "it is there"),
]
SPACE = Space.from_sizes([1, 2, 4, 8, 16])


@pytest.fixture
def server() -> Iterator[postgres.Server]:
    with postgres.server() as made:
        yield made


def answers(probe: Probe) -> Observation:
    """Faster up to 8 samples, slower beyond."""
    pass_s = 0.1 + 0.01 * probe.micro_batch_size if probe.micro_batch_size <= 8 else 1.0
    return Observation(probe=probe, outcome=Outcome.MEASURED, pass_times_s=(pass_s,) * 5, elapsed_s=1.0)


def explored(folder: Path, url: str, runner: Callable[[Probe], Observation] = answers) -> loop.Result:
    folder.mkdir(exist_ok=True)
    book = Journal(folder / "journal.jsonl")
    run = loop.RunRecord(storage=url, lock_path=folder / ".lock", record=book.append, history=book.read())
    *_, result = loop.run_search(runner, space=SPACE, settings=SearchSettings(seed=3), run=run)
    return result


@pytest.mark.promise("PostgreSQL is stopped in the middle", "one error with what to type; the next call loses nothing")
def test_a_server_that_is_stopped_in_mid_run_costs_no_probe(server, tmp_path):
    asked: list[int] = []

    def runner(probe: Probe) -> Observation:
        asked.append(probe.number)
        if len(asked) == 2:
            server.stop()
        return answers(probe)

    try:
        with pytest.raises(EngineError, match="the study's storage failed") as error:
            explored(tmp_path, server.url, runner)
    finally:
        server.start()

    assert "run the same command again" in error.value.hint
    known = Journal(tmp_path / "journal.jsonl").read()
    assert [one.probe.number for one in known] == asked
    assert explored(tmp_path, server.url).recommendation.micro_batch_size == 8
    assert Journal(tmp_path / "journal.jsonl").read()[: len(known)] == known


@pytest.mark.promise("two explorers begin at once on an empty PostgreSQL", "no trial is run twice; one answer")
def test_explorers_that_share_a_server_share_the_probes(server, tmp_path):
    found: dict[str, loop.Result] = {}

    def explore(name: str) -> None:
        found[name] = explored(tmp_path / name, server.url)

    threads = [threading.Thread(target=explore, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120.0)

    assert {name: one.recommendation.micro_batch_size for name, one in found.items()} == {"a": 8, "b": 8}
    numbers = [one.probe.number for name in "ab" for one in Journal(tmp_path / name / "journal.jsonl").read()]
    assert len(numbers) == len(set(numbers))
