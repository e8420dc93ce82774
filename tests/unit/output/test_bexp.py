"""What the sinks write, to the byte where others depend on it."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta, timezone

import pytest

from bexplore.measurement.probe import REAL_STEP, Compilation, Observation, Outcome, Probe
from bexplore.output.bexp import (
    bexp_line,
    probe_sentence,
    recommendation_line,
    recommendation_lines,
    settings_sentences,
)
from bexplore.run.event_records import event_record, probe_record
from bexplore.run.events import Recommended, Traced
from bexplore.run.selection import LeftOut
from bexplore.search import loop
from bexplore.search.evidence import Evidence
from bexplore.search.policy.decide import decide
from bexplore.search.recommendation import Recommendation
from bexplore.search.settings import SearchSettings
from bexplore.search.space import Space
from tests.builders import observed

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
    """What the next probe is interleaved with."""
    return decide(Space.from_sizes(range(1, 65)), evidence, dataclasses.replace(SHARED, **settings)).interleaved_with


def test_one_round_is_reported_as_one():
    rounds = {8: (4.0,), 4: (2.5,)}
    asked = Probe(number=3, micro_batch_size=8, interleaved_with=(4,))
    observation = Observation(probe=asked, outcome=Outcome.MEASURED, pass_times_s=rounds[8], interleaved_times_s=rounds)

    assert "in 1 round each" in probe_sentence(loop.ProbeFinished(observation=observation))


@pytest.mark.parametrize(("num_replicas", "of_each"), [(1, ""), (4, " of each replica")])
def test_a_start_of_a_command_tells_its_timed_steps_and_whose_speed_it_is(num_replicas, of_each):
    details = {"num_timed_steps": 76, "num_replicas": num_replicas}
    observation = observed(8, pass_times_s=(0.1,) * 5, details=details)

    sentence = probe_sentence(loop.ProbeFinished(observation=observation))

    assert f"measured 80 samples/s{of_each}, pass 100 ms (76 steps timed)" in sentence


def test_interleaved_sizes_are_told_to_people_and_scripts():
    rounds = {8: (0.4, 0.44), 4: (0.25, 0.275)}
    asked = Probe(number=3, micro_batch_size=8, interleaved_with=(4,))
    observation = Observation(probe=asked, outcome=Outcome.MEASURED, pass_times_s=rounds[8], interleaved_times_s=rounds)

    sentence = probe_sentence(loop.ProbeFinished(observation=observation))

    assert "1.25x the speed of size 4 in 2 rounds each" in sentence
    assert probe_record(observation)["interleaved_times_s"] == {"8": [0.4, 0.44], "4": [0.25, 0.275]}


# Settings that are explored together with the size

FULL = {"activation_checkpointing": "full"}


def test_settings_of_a_recommendation_follow_in_a_line_of_their_own():
    event = Recommended(
        recommendation=recommendation(variant=1),
        global_batch_sizes=(),
        settings=FULL,
        name="activation_checkpointing=full",
    )

    assert recommendation_lines(event, WHEN) == [
        recommendation_line(recommendation(), WHEN),
        "BEXP205 19:39:45 GMT  Current recommended settings: activation_checkpointing=full",
    ]
    assert event_record(event)["variant"] == 1
    assert event_record(event)["settings"] == FULL


def test_tokens_of_a_recommendation_follow_in_a_line_of_their_own():
    event = Recommended(recommendation=recommendation(), global_batch_sizes=(), micro_batch_tokens=1536)

    assert recommendation_lines(event, WHEN) == [
        recommendation_line(recommendation(), WHEN),
        "BEXP206 19:39:45 GMT  Current recommended micro_batch_tokens: 1536",
    ]
    assert event_record(event)["micro_batch_tokens"] == 1536


def test_a_recommendation_of_a_job_with_one_variant_is_one_line():
    event = Recommended(recommendation=recommendation(), global_batch_sizes=())

    assert recommendation_lines(event, WHEN) == [recommendation_line(recommendation(), WHEN)]
    assert event_record(event)["settings"] == {}


def test_a_probe_names_its_settings_and_its_event_has_them():
    probe = Probe(number=3, micro_batch_size=8, variant=1)
    item = Observation(probe=probe, outcome=Outcome.MEASURED, pass_times_s=(1.0,), details={"settings": FULL})

    told = probe_sentence(loop.ProbeFinished(observation=item))
    assert told.startswith("probe 3: size 8, activation_checkpointing=full, shared: measured 8 samples/s")
    assert (probe_record(item)["variant"], probe_record(item)["settings"]) == (1, FULL)
    plain = dataclasses.replace(item, probe=dataclasses.replace(probe, variant=0), details={})
    assert probe_sentence(loop.ProbeFinished(observation=plain)).startswith("probe 3: size 8, shared: ")
    assert (probe_record(plain)["variant"], probe_record(plain)["settings"]) == (0, {})


def test_a_command_that_failed_before_it_showed_its_program_has_none_in_words():
    failed = observed(8, outcome=Outcome.CRASHED, pass_times_s=(), reason="ValueError: odd", ran_eagerly=None)

    assert ": size 8: crashed: ValueError: odd, in " in probe_sentence(loop.ProbeFinished(observation=failed))
    assert probe_record(failed)["compilation"] is None


def test_a_start_after_the_search_is_told_from_its_probes():
    check = observed(8, details={REAL_STEP: None})

    assert ", a check after the search: measured" in probe_sentence(loop.ProbeFinished(observation=check))


def traced(*variants: dict, left_out: tuple[LeftOut, ...] = ()) -> Traced:
    return Traced(record=None, reason="", memory_budget_bytes=1, why_budget="", variants=variants, left_out=left_out)


def settings(name: str, fits: int | None, **fields) -> dict:
    told = {"name": name, "settings": {}, "max_micro_batch_size": fits, "operations_over_file": 1.5, "reason": ""}
    return told | fields


def test_the_trace_tells_what_fits_by_settings_and_what_is_left_out():
    event = traced(
        settings("a=1", 8),
        settings("a=2", 0, operations_over_file=None),
        settings("a=3", None, reason="no graph"),
        left_out=(LeftOut(name="a=4", settings={}, reason="needs 9 GiB"),),
    )

    assert settings_sentences(event) == [
        "a=1: sizes up to 8 fit, 1.50x the operations of the file's own settings",
        "a=2: not even the smallest size fits",
        "a=3: no trace: no graph",
        "left out: a=4: needs 9 GiB",
    ]
    record = event_record(event)
    assert [one["max_micro_batch_size"] for one in record["variants"]] == [8, 0, None]
    assert record["left_out"] == [{"name": "a=4", "settings": {}, "reason": "needs 9 GiB"}]
