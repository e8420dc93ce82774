"""The campaign of faults in a few rounds: explorers that are killed, generated inputs."""

from __future__ import annotations

import pytest

from benchmarks.fault_inputs import generate
from benchmarks.fault_recorded import kill_and_resume, several_on_one_study
from tests.engine import postgres

# Explorers that are killed


@pytest.mark.promise("kills at random moments of an exploration", "the same recommendation; no probe is repeated")
def test_a_killed_explorer_resumes_to_the_same_answer_without_repeats(tmp_path):
    found = kill_and_resume(tmp_path, kills=4, seed=1)

    assert found["same recommendation"] == 4, found["failures"]
    assert (found["lost observations"], found["repeated probes"]) == (0, 0)


@pytest.mark.promise("one of two explorers of a study file is killed", "the other goes on")
def test_two_explorers_share_a_study_file_and_one_is_killed(tmp_path):
    _is_shared_well(several_on_one_study(tmp_path, None, rounds=2, explorers=2, kills=1, seed=3))


@pytest.mark.promise("two of four explorers on PostgreSQL are killed", "the others go on; no size is lost")
@pytest.mark.skipif(bool(postgres.missing()), reason=postgres.missing() or "it is there")
def test_four_explorers_share_a_postgresql_study_and_two_are_killed(tmp_path):
    with postgres.server() as server:
        _is_shared_well(several_on_one_study(tmp_path, server.url, rounds=1, explorers=4, kills=2, seed=3))


def _is_shared_well(found: dict) -> None:
    assert found["numbers given twice"] == 0
    assert found["sizes searched twice by accident"] == 0
    assert found["observations not in the study"] == 0
    assert found["ended with an error"] == 0
    assert found["same answer as one process on the same observations"] == found["rounds"]


# Inputs


@pytest.mark.promise("800 generated inputs, of every parser", "no traceback; no other file is written")
def test_no_generated_input_shows_a_traceback_runs_long_or_writes_away(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    found = generate(tmp_path, number=800, seed=11)

    assert found["tracebacks"] == 0, [target["failures"] for target in found["parsers"].values()]
    assert found["files_made"] == []
    assert found["memory_growth_mib"] < 500
