"""What is guarded: a size, and the settings that go with it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from bexplore.guard import snapshot
from bexplore.guard.baseline import Baseline, read_baseline, write_baseline
from bexplore.guard.report import Tier
from bexplore.guard.snapshot import Guarded, Setup, find_guarded, observe
from bexplore.run import run_directory
from bexplore.run.result import RunResult
from tests.unit.config.builders import Folder, sections
from tests.unit.guard.builders import baseline, facts

LISTS = {"settings": {"activation_checkpointing": ["none", "full"]}}
FULL = {"activation_checkpointing": "full"}


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def run_with(folder, **fields):
    """A finished run with a result."""
    run = run_directory.create_run(folder, meta={}, now=datetime(2026, 1, 2, tzinfo=UTC))
    record = {"micro_batch_size": 8, "base_micro_batch_size": 2, "relative_performance": 1.5, "confidence": 91}
    run.write_result(RunResult.from_record(record | fields))


def test_the_newest_result_is_guarded_with_its_settings(folder, tmp_path):
    run_with(tmp_path / "runs", variant=1, settings=FULL)
    config = folder.load(sections(explore=LISTS))

    assert find_guarded(config, None, tmp_path / "runs") == Guarded(recommended=8, base=2, settings=FULL)


def test_the_files_own_settings_are_guarded_where_they_are_the_answer(folder, tmp_path):
    run_with(tmp_path / "runs", variant=0, settings={"activation_checkpointing": "none"})
    config = folder.load(sections(explore=LISTS))

    assert find_guarded(config, None, tmp_path / "runs") == Guarded(recommended=8, base=2)


def test_a_size_of_user_or_file_is_guarded_with_the_files_settings(folder, tmp_path):
    run_with(tmp_path / "runs", variant=1, settings=FULL)

    assert find_guarded(folder.load(sections(explore=LISTS)), 4, tmp_path / "runs") == Guarded(recommended=4, base=1)
    applied = folder.load(sections(6, explore=LISTS))
    assert find_guarded(applied, None, tmp_path / "runs") == Guarded(recommended=6, base=1)


@pytest.fixture
def traced(monkeypatch):
    """The jobs of which facts are taken."""
    jobs = []

    def metrics(job, log_path, **_options):
        jobs.append(job)
        return facts(), {"device": "cpu"}

    monkeypatch.setattr(snapshot, "metrics_in_worker", metrics)
    return jobs


def test_the_facts_are_those_of_the_variant_with_the_settings(folder, tmp_path, traced):
    config = folder.load(sections(explore=LISTS))
    setup = Setup(run_dir=tmp_path, tiers=frozenset({Tier.ANY_MACHINE}))

    observed = observe(config, setup, Guarded(recommended=8, base=1, settings=FULL))
    plain = observe(config, setup, Guarded(recommended=8, base=1))

    assert [job.activation_checkpointing for job in traced] == ["full", "none"]
    assert observed.config.job.activation_checkpointing == "full"
    assert (observed.snapshot.settings, plain.snapshot.settings) == (FULL, {})
    assert observed.snapshot.job["activation_checkpointing"] == "full"


def test_settings_that_the_file_has_as_its_own_are_its_own_job(folder, tmp_path, traced):
    applied = folder.load(sections(8, explore={"activation_checkpointing": "full"}))
    setup = Setup(run_dir=tmp_path, tiers=frozenset({Tier.ANY_MACHINE}))

    assert (
        observe(applied, setup, Guarded(recommended=8, base=1, settings=FULL)).config.job
        == applied.on_device("cpu").job
    )


def test_a_baseline_keeps_settings_and_mentions_none_it_has_not(tmp_path):
    path = tmp_path / "baseline.json"
    with_settings, without = baseline(settings=FULL), baseline()

    write_baseline(path, with_settings)
    assert read_baseline(path, typed="job.yaml") == with_settings
    assert "settings" not in without.as_record()
    assert Baseline.from_record(without.as_record()) == without
