"""Samples of many lengths in a session: memory with the longest batch, times over typical ones, one program for all."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from bexplore.engine.protocol.messages import RunProbe, SharedMode
from bexplore.engine.worker.measured_memory import measure_untraced
from bexplore.engine.worker.measuring import measure
from bexplore.engine.worker.program_metrics import program_metrics
from bexplore.engine.worker.session import Session
from bexplore.host.records import from_record, to_record
from bexplore.job import CompileSettings, Job
from bexplore.job.lengths import Collation, Lengths
from bexplore.measurement.probe import Compilation, Probe, Purpose
from bexplore.trace.cost_model import CostModel
from bexplore.trace.tracer import trace_job
from bexplore.workloads.workload import find_num_positions
from tests.builders import imported_job

pytestmark = pytest.mark.usefixtures("one_thread")

MODEL = {"num_layers": 1, "hidden_size": 64, "num_heads": 2, "vocab_size": 64, "max_position_embeddings": 128}
LENGTHS = Lengths.from_samples([8, 16, 24, 32, 40, 64, 128])
SIZE = 4


def job_of(lengths: Lengths | None, **fields) -> Job:
    given = {"compile": CompileSettings(enabled=False)} | fields
    return Job(workload="decoder", model=MODEL, sequence_length=128, lengths=lengths, **given)


def session_of(job: Job, compilation: Compilation = Compilation.EAGER) -> Session:
    return Session(
        RunProbe(
            job=job, probe=Probe(number=0, micro_batch_size=1, compilation=compilation), shared_mode=SharedMode.NESTED
        ),
        report=lambda **_: None,
    )


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch.compiler.reset()


def measured(session: Session, purpose: Purpose = Purpose.SEARCH) -> dict:
    probe = Probe(number=0, micro_batch_size=SIZE, compilation=session.compilation, purpose=purpose, max_passes=2)
    return measure(session, probe, pass_budget_s=0.1)


def test_the_peak_of_a_probe_is_that_of_a_batch_of_the_longest_samples():
    of_many, of_longest = measured(session_of(job_of(LENGTHS))), measured(session_of(job_of(None)))

    assert of_many["peak_memory_bytes"] == of_longest["peak_memory_bytes"]


def test_memory_of_a_number_of_tokens_is_read_where_most_is_needed(captions):
    probe = Probe(number=0, micro_batch_size=1, compilation=Compilation.EAGER, max_passes=2)
    found = measure(session_of(captions), probe, pass_budget_s=0.1)

    assert found["details"]["memory_batch"] == [16, 8]
    assert found["peak_memory_bytes"] > 16 * 4 * 2**16


@pytest.fixture
def captions() -> Job:
    """A picture in each sample, so that a number of tokens needs most memory where they are most samples."""
    lengths = Lengths.from_samples([8, 16, 128], collation=Collation.TOKENS)
    fields = {"compile": CompileSettings(enabled=False), "lengths": lengths, "device": "cpu"}
    return imported_job("captioner", batch="captioned_pictures", loss="caption_loss", **fields)


def test_steps_instead_of_a_trace_are_measured_at_the_shortest_samples_too(captions):
    model = from_record(CostModel, to_record(measure_untraced(session_of(captions), [1, 2, 4])))
    probe = Probe(number=0, micro_batch_size=8, compilation=Compilation.EAGER, max_passes=2)
    found = measure(session_of(captions), probe, pass_budget_s=0.1)

    assert found["details"]["memory_batch"] == [128, 8]
    assert model.peak_memory_bytes(8) == pytest.approx(found["peak_memory_bytes"], rel=0.02)


def test_the_guard_plans_the_memory_of_the_batch_that_needs_most(captions):
    model = trace_job(captions.at_length(8))
    assert program_metrics(captions).peak_memory_bytes(8) == model.peak_memory_bytes(8 * 16)


class Positions(torch.nn.Module):
    def __init__(self, **attributes: object) -> None:
        super().__init__()
        self.__dict__.update(attributes)


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        (torch.nn.Linear(2, 2), None),
        (Positions(block_size=512), 512),
        (Positions(config=Positions(n_positions=256, max_seq_len=1024)), 256),
        (Positions(block_size=64), None),  # of something else: samples have up to 128
        (torch.nn.ModuleDict({"pos_emb": torch.nn.Embedding(300, 2), "tokens": torch.nn.Embedding(200, 2)}), 300),
    ],
)
def test_a_live_model_is_asked_for_its_positions(inner, expected):
    workload = session_of(job_of(LENGTHS)).workload
    asked = dataclasses.replace(workload, loss_module=None, compiled_modules=[torch.nn.Sequential(inner)])
    assert find_num_positions(asked) == expected


def test_a_pass_is_one_of_each_typical_batch_and_its_time_their_mean(monkeypatch):
    session = session_of(job_of(LENGTHS))
    typical = LENGTHS.typical_batches(SIZE)
    monkeypatch.setattr(session.steps, "_time_passes", lambda batch, *_arguments, **_named: float(batch[0].size(1)))

    seconds = session.steps.time_pass(session.batches.make_timed(SIZE))

    assert len(typical) > 1
    assert seconds == pytest.approx(sum(one.share * one.length for one in typical))


def test_batches_of_so_many_tokens_count_for_their_samples(monkeypatch):
    lengths = dataclasses.replace(LENGTHS, collation=Collation.TOKENS)
    session = session_of(job_of(lengths))
    monkeypatch.setattr(session.steps, "_time_passes", lambda batch, *_arguments, **_named: float(batch[0].size(0)))

    seconds = session.steps.time_pass(session.batches.make_timed(SIZE))

    assert SIZE / seconds == pytest.approx(1.0)  # a second a sample, whatever the rows of a batch


def test_the_final_answer_is_timed_under_other_collations_too():
    session = session_of(job_of(LENGTHS, compile=CompileSettings(backend="aot_eager", dynamic=None)), Compilation.EXACT)
    found = measured(session, Purpose.VERIFY)

    assert set(found["details"]["collations"]) == {"sorted", "packed"}
    assert all(relative_speed > 0.0 for relative_speed in found["details"]["collations"].values())


@pytest.mark.parametrize(("dynamic", "one_for_all"), [(None, True), (False, False)])
def test_one_program_serves_all_lengths_unless_it_compiles_statically(dynamic, one_for_all):
    job = job_of(LENGTHS, compile=CompileSettings(backend="aot_eager", dynamic=dynamic))
    found = measured(session_of(job, Compilation.EXACT))

    assert (found["num_recompiles"] == 0) == one_for_all
