"""What the sinks write, to the byte where others depend on it."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta, timezone

import pytest

from bexplore.exploration.event_records import probe_record
from bexplore.measurement.probe import Compilation, Observation, Outcome, Probe
from bexplore.output.bexp import bexp_line, probe_sentence, recommendation_line
from bexplore.search import loop
from bexplore.search.evidence import Evidence
from bexplore.search.policy.decision import decide
from bexplore.search.recommendation import Recommendation
from bexplore.search.settings import SearchSettings
from bexplore.search.space import Space

WHEN = datetime(2026, 1, 2, 19, 39, 45, tzinfo=UTC)


def recommendation(**fields) -> Recommendation:
    facts = {
        "micro_batch_size": 2,
        "relative_performance": 1.2,
        "confidence": 45,
        "samples_per_s": 10.0,
        "smallest_within_tolerance": 2,
        "base_micro_batch_size": 1,
        "num_probes": 3,
    }
    return Recommendation(**facts | fields)


def test_the_recommendation_line_is_the_reference_flows_to_the_byte():
    assert recommendation_line(recommendation(), WHEN) == (
        "BEXP202 19:39:45 GMT  Current recommended micro_batch_size: 2, estimated performance: 1.20x base, "
        "confidence score: 45 (out of 100)"
    )


def test_the_time_of_a_line_is_utc_wherever_it_is_written():
    tokyo = WHEN.astimezone(timezone(timedelta(hours=9)))

    assert bexp_line(204, "over", tokyo) == "BEXP204 19:39:45 GMT  over"


def test_a_code_that_is_not_in_the_table_is_refused():
    with pytest.raises(ValueError, match="unknown code 999"):
        bexp_line(999, "", WHEN)


SHARED = SearchSettings(search_compilation=Compilation.SHARED, verify_exact=False)


def asked(*evidence: Evidence, **settings) -> tuple[int, ...]:
    """What the next probe takes turns with."""
    return decide(Space.of(range(1, 65)), evidence, dataclasses.replace(SHARED, **settings)).interleaved_with


def test_one_turn_is_told_as_one():
    turns = {8: (4.0,), 4: (2.5,)}
    asked = Probe(number=3, micro_batch_size=8, interleaved_with=(4,))
    observation = Observation(probe=asked, outcome=Outcome.MEASURED, pass_times_s=turns[8], interleaved_times_s=turns)

    assert "in 1 turn each" in probe_sentence(loop.ProbeFinished(observation=observation))


def test_people_and_scripts_are_told_with_what_a_size_took_turns_and_how_it_did():
    turns = {8: (0.4, 0.44), 4: (0.25, 0.275)}
    asked = Probe(number=3, micro_batch_size=8, interleaved_with=(4,))
    observation = Observation(probe=asked, outcome=Outcome.MEASURED, pass_times_s=turns[8], interleaved_times_s=turns)

    sentence = probe_sentence(loop.ProbeFinished(observation=observation))

    assert "1.25x the speed of size 4 in 2 turns each" in sentence
    assert probe_record(observation)["interleaved_times_s"] == {"8": [0.4, 0.44], "4": [0.25, 0.275]}
