"""A job whose samples differ in length: its record, its fingerprint, and the job of one length."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bexplore.host.records import from_record
from bexplore.job import Job
from bexplore.job.lengths import Collation, Lengths

LENGTHS = Lengths.from_samples([10, 20, 30], source="lengths.txt")
EVERY_FIELD = Lengths.from_samples(
    [10, 20], [1, 3], collation=Collation.BUCKETS, multiple_of=8, buckets=(16, 32), argument="tokens", source="here"
)


def job(lengths: Lengths | None = LENGTHS, **fields: Any) -> Job:
    return Job(**{"workload": "decoder", "sequence_length": 32, "lengths": lengths} | fields)


@pytest.mark.parametrize("lengths", [None, LENGTHS, EVERY_FIELD], ids=["none", "samples", "every field"])
def test_a_job_survives_json(lengths):
    again = from_record(Job, json.loads(json.dumps(job(lengths).as_record())))

    assert again == job(lengths)
    assert lengths is None or again.lengths.source == lengths.source
    assert hash(again.lengths) == hash(lengths)


def test_the_record_of_a_job_without_lengths_does_not_name_them():
    assert "lengths" not in job(None).as_record()


def test_a_record_from_before_there_were_lengths_is_a_job_without():
    assert from_record(Job, job(None).as_record()).lengths is None


@pytest.mark.parametrize(
    "other",
    [
        None,
        Lengths.from_samples([10, 20, 31]),
        Lengths.from_samples([10, 20, 30], [1, 1, 2]),
        Lengths.from_samples([10, 20, 30], collation=Collation.SORTED),
        Lengths.from_samples([10, 20, 30], multiple_of=8),
        Lengths.from_samples([10, 20, 30], argument="tokens"),
    ],
)
def test_other_lengths_are_another_program(other):
    assert job(other).fingerprint() != job().fingerprint()
    assert job().fingerprint() == job(Lengths.from_samples([30, 10, 20], source=LENGTHS.source)).fingerprint()


@pytest.mark.parametrize(
    ("lengths", "sequence_length", "tokens"), [(None, 32, 32), (None, None, None), (LENGTHS, 30, 20), (LENGTHS, 32, 20)]
)
def test_the_tokens_of_a_sample_are_their_mean_without_padding(lengths, sequence_length, tokens):
    assert job(lengths, sequence_length=sequence_length).tokens_per_sample == tokens


def test_a_job_at_a_length_has_samples_of_that_length_alone():
    model = {"hidden_size": 8}
    assert job(model=model).at_length(12) == job(None, model=model, sequence_length=12)


def test_own_callables_are_told_the_length_of_a_job_at_a_length():
    model = {"model": "m:a", "batch": "m:b", "arguments": {"width": 8, "tokens": 1}}
    own = job(EVERY_FIELD, workload="imported", model=model)

    assert own.at_length(12).model == model | {"arguments": {"width": 8, "tokens": 12}}
    assert own.at_length(12).lengths is None
    assert own.model["arguments"] == {"width": 8, "tokens": 1}


def test_own_callables_without_arguments_get_the_length_by_usual_name():
    own = job(workload="imported", model={"step": "m:a"})
    assert own.at_length(12).model["arguments"] == {"sequence_length": 12}


def test_the_sample_of_a_batch_of_a_number_of_tokens_is_the_longest():
    in_tokens = Lengths.from_samples([10, 20, 30], collation=Collation.TOKENS)
    assert job(in_tokens).tokens_per_sample == 30


def test_the_name_of_the_file_of_lengths_is_no_part_of_the_program():
    one, other = (
        Job(workload="decoder", lengths=Lengths.from_samples([1, 2], source=source)) for source in ("a.txt", "b.txt")
    )

    assert one.fingerprint() == other.fingerprint()


def test_targets_are_shorter_in_proportion():
    job = Job(workload="transformers", data={"target_length": 10}, sequence_length=40)

    assert job.at_length(20).data["target_length"] == 5
