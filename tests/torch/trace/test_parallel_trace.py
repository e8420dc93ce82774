"""The trace of a rank is what the allocator measures on one: a process with real tensors, whose collectives are copies.

Eagerly, which is quick; benchmarks/results/distributed_trace.md has the compiled programs.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from bexplore.engine.worker.own_process import DataLimit
from bexplore.engine.worker.session import MemoryStep
from bexplore.engine.worker.steps import Steps
from bexplore.estimate.collectives import Collective
from bexplore.job import CompileSettings, Job, Mode, Parallelism, Precision
from bexplore.trace import passes
from bexplore.trace.communication import find_job_communication
from bexplore.trace.cost_model import Phase, Polynomial
from bexplore.trace.fake_build import build_fake
from bexplore.trace.lifetimes import LifetimeTracker
from bexplore.trace.passes import PRIMES, choose_probe_batch
from bexplore.trace.tracer import gradient_memory, trace_job
from bexplore.workloads import build
from tests.builders import JOBS
from tests.torch.groups import leave_group

pytestmark = pytest.mark.usefixtures("one_thread", "no_group_left")

EAGER = CompileSettings(enabled=False)
HEADS = 4
DECODER = {
    "workload": "decoder",
    "model": {
        "num_layers": 2,
        "hidden_size": 64,
        "num_heads": HEADS,
        "vocab_size": 250,  # which the ranks must pad
        "max_position_embeddings": 16,
    },
    "sequence_length": 16,
}
LLAMA_CONFIG = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "intermediate_size": 96,
    "vocab_size": 250,
    "max_position_embeddings": 16,
}
LLAMA = {
    "workload": "transformers",
    "model": {"task": "causal_lm", "model_type": "llama", "config": LLAMA_CONFIG},
    "data": {"sequence_length": 16},
    "sequence_length": 16,
}
RESNET_CONFIG = {"depths": [1, 1], "hidden_sizes": [32, 64], "embedding_size": 16, "num_labels": 10}
CONVNEXT_CONFIG = {"num_stages": 2, "depths": [1, 1], "hidden_sizes": [16, 24], "num_labels": 10}


def images(model_type: str, config: dict) -> dict:
    model = {"task": "image_classification", "model_type": model_type, "config": config}
    return {"workload": "transformers", "model": model, "data": {"image_size": 64}}


MODELS = {
    "decoder": DECODER,
    "llama": LLAMA,
    "resnet": images("resnet", RESNET_CONFIG),
    "convnext": images("convnext", CONVNEXT_CONFIG),  # its build reads values
}
WAYS = {
    "FSDP": {"data_parallel_shard_degree": 4},
    "FSDP always": {"data_parallel_shard_degree": 4, "fsdp_reshard_after_forward": "always"},
    "FSDP never": {"data_parallel_shard_degree": 4, "fsdp_reshard_after_forward": "never"},
    "FSDP every pass": {"data_parallel_shard_degree": 4, "gradient_sync": "every"},
    "FSDP bfloat16": {
        "data_parallel_shard_degree": 4,
        "mixed_precision_param": "bfloat16",
        "mixed_precision_reduce": "float32",
    },
    "FSDP of many": {"data_parallel_shard_degree": 122},  # more than rows, and twice the first prime
    "HSDP": {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 4},
    "TP": {"tensor_parallel_degree": HEADS},
    "TP and FSDP": {"data_parallel_shard_degree": 2, "tensor_parallel_degree": 2},
    "DDP": {"data_parallel_replicate_degree": 4},
    "DDP views every pass": {
        "data_parallel_replicate_degree": 4,
        "gradient_as_bucket_view": True,
        "gradient_sync": "every",
    },
}


def rank(model: str, way: str, **fields) -> Job:
    parallelism = Parallelism(**WAYS[way])
    defaults = {"compile": EAGER, "max_gradient_norm": 1.0, "num_replicas": parallelism.num_replicas}
    return Job(**MODELS[model], parallelism=parallelism, **defaults | fields)


def measured_peak(job: Job, micro_batch_size: int) -> int:
    workload = build(job)
    for module in workload.compiled_modules if job.compile.enabled else ():
        module.compile(dynamic=False)
    steps = Steps(workload, torch.device("cpu"))
    batch = workload.make_batch(micro_batch_size)
    steps.forward_backward(batch)
    steps.update()  # the optimizer has its states
    step = MemoryStep(steps, torch.device("cpu"), DataLimit(None), is_training=job.mode is Mode.TRAIN)
    return step.run(batch, micro_batch_size, expected_pass_s=0.0).peak.allocated_bytes


@pytest.mark.parametrize(
    ("model", "way"),
    [
        *(("decoder", way) for way in WAYS if way != "TP and FSDP"),  # which the next has
        ("llama", "TP and FSDP"),
        ("resnet", "DDP"),
        ("convnext", "FSDP"),  # whose convolutions of single channels are wide
    ],
)
def test_the_trace_of_a_rank_is_what_the_allocator_measures_on_one(model, way):
    job = rank(model, way)
    traced = trace_job(job)
    # Kernels of bfloat16 and of convolutions take some kilobytes of their own, which are much of so small a step.
    is_plain = model == "decoder" and "bfloat16" not in way
    within = 0.01 if is_plain else 0.03
    for micro_batch_size in (2 if is_plain else 8, 32):
        measured = measured_peak(job, micro_batch_size)
        assert traced.peak_memory_bytes(micro_batch_size) == pytest.approx(measured, rel=within)


def test_the_trace_of_a_compiled_rank_is_what_the_allocator_measures(monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_DEBUG_COMPILE", "1")  # what kernels allocate does not depend on optimizing them
    job = rank("decoder", "FSDP", compile=CompileSettings())
    traced = trace_job(job)
    assert traced.notes == ()
    assert traced.peak_memory_bytes(24) == pytest.approx(measured_peak(job, 24), rel=0.03)


@pytest.mark.parametrize(
    ("settings", "micro_batch_size"),
    [
        ({"num_layers": 5, "hidden_size": 128}, 48),
        ({"hidden_size": 256, "vocab_size": 4096}, 8),  # the two gradients of its embedding are most of its peak
    ],
)
def test_the_program_of_replicas_is_split_at_their_gradient_buckets(settings, micro_batch_size, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_DEBUG_COMPILE", "1")
    wide = DECODER["model"] | settings  # the first bucket has 1 MiB
    job = dataclasses.replace(rank("decoder", "DDP", compile=CompileSettings()), model=wide)
    traced = trace_job(job)
    assert traced.notes == ()  # a split is no graph break
    assert traced.peak_memory_bytes(micro_batch_size) == pytest.approx(measured_peak(job, micro_batch_size), rel=0.001)


def test_blocks_of_one_class_and_of_other_widths_are_programs_of_their_own():
    traced = trace_job(rank("resnet", "FSDP", compile=CompileSettings()))
    assert traced.notes == ()
    eager = trace_job(rank("resnet", "FSDP"))
    assert traced.peak_memory_bytes(32) == pytest.approx(eager.peak_memory_bytes(32), rel=0.1)


@pytest.mark.parametrize("precision", [Precision.BFLOAT16, Precision.AUTOCAST_BFLOAT16])
def test_a_rank_of_another_precision_is_traced(precision):
    job = rank("decoder", "FSDP", precision=precision)
    assert trace_job(job).peak_memory_bytes(24) == pytest.approx(measured_peak(job, 24), rel=0.005)


def test_the_evaluation_of_a_rank_is_traced_without_gradients_and_buckets():
    for way in ("FSDP", "DDP"):
        job = rank("decoder", way, mode=Mode.EVAL)
        traced = trace_job(job)
        assert set(traced.phases(24)) == {"forward"}
        assert {buffer.label for buffer in traced.resident} == {"weights", "buffers", "batch"}
        leave_group()


def test_parameters_are_counted_whole_and_states_are_a_ranks_share():
    whole = trace_job(rank("decoder", "DDP"))
    leave_group()
    shared = trace_job(rank("decoder", "FSDP of many"))
    assert whole.num_parameters == shared.num_parameters
    assert size_of(shared, "optimizer states") < size_of(whole, "optimizer states") / 20


def size_of(traced, label: str) -> float:
    return next(buffer.size(1) for buffer in traced.resident if buffer.label == label)


def test_the_fingerprint_of_a_rank_is_the_same_in_each_trace():
    fingerprints = set()
    for _ in range(2):
        fingerprints.add(trace_job(rank("decoder", "FSDP")).fingerprint)
        leave_group()
    assert len(fingerprints) == 1


class OfSixtyOne(nn.Module):
    """A block of 12 x 4, 12 and 62 trained numbers: 61 for each of two ranks, and no dimension a multiple of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 12)
        self.scale = nn.Parameter(torch.ones(62))
        self.back = nn.Linear(12, 4, bias=False)
        self.back.weight.requires_grad_(False)  # gathered, and never reduced

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.back(self.layer(inputs)) * self.scale.mean()


def of_sixty_one() -> nn.Module:
    return nn.Sequential(OfSixtyOne(), OfSixtyOne())


def fours(micro_batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(micro_batch_size, 4), torch.zeros(micro_batch_size, dtype=torch.int64)


def odd_job(num_ranks: int) -> Job:
    return Job(
        workload="imported",
        model={"model": f"{__name__}:of_sixty_one", "batch": f"{__name__}:fours"},
        import_root=str(JOBS.parents[1]),
        parallelism=Parallelism(data_parallel_shard_degree=num_ranks, gradient_sync="every"),
        num_replicas=num_ranks,
        compile=EAGER,
    )


def test_the_size_of_a_trace_divides_nothing_that_ranks_gather_or_reduce():
    workload, fake_mode = build_fake(odd_job(2))
    sums = [sum(one.numel() for one in block.parameters() if one.requires_grad) for block in workload.compiled_modules]
    assert sums == [2 * PRIMES[0], 2 * PRIMES[0]]
    assert choose_probe_batch(workload, fake_mode) > PRIMES[0]


@pytest.mark.parametrize("num_ranks", [2, 3, 5])
def test_a_model_of_blocks_alone_and_of_odd_sizes_is_traced(num_ranks):
    job = odd_job(num_ranks)
    traced = trace_job(job)
    for micro_batch_size in (2, 500):
        measured = measured_peak(job, micro_batch_size)
        assert traced.peak_memory_bytes(micro_batch_size) == pytest.approx(measured, abs=64)


def test_gradients_in_buckets_are_beside_those_of_earlier_passes():
    views = Parallelism(data_parallel_replicate_degree=4, gradient_as_bucket_view=True)
    sizes = {"gradient_bytes": 8, "bucket_bytes": 8, "accumulated": Polynomial(8)}
    resident, before_pass, _ = gradient_memory(dataclasses.replace(views, gradient_sync="every"), **sizes)
    resident_of_last, before_last, _ = gradient_memory(views, **sizes)
    assert before_pass == []
    assert [event.size(1) for event in before_last] == [8]
    assert resident_of_last == resident


def test_a_deep_model_that_ranks_shard_is_traced_at_full_depth():
    deep = dict(DECODER, model=DECODER["model"] | {"num_layers": 8})
    parallelism = Parallelism(**WAYS["FSDP"])
    job = Job(**deep, parallelism=parallelism, num_replicas=4, compile=EAGER)
    traced = trace_job(job)
    assert Phase.UPDATE in traced.peaks
    assert traced.peak_memory_bytes(8) == pytest.approx(measured_peak(job, 8), rel=0.005)


@pytest.mark.parametrize(("way", "optimizer"), [("FSDP", "AdamW"), ("TP and FSDP", "SGD")])
def test_the_update_of_own_parts_is_that_of_shared_tensors(way, optimizer, monkeypatch):
    arguments = {"lr": 0.1, "momentum": 0.9} if optimizer == "SGD" else {}
    job = rank("decoder", way, optimizer=optimizer, optimizer_arguments=arguments)
    of_parts = trace_job(job)
    monkeypatch.setattr(passes, "_NUMBER_BY_NUMBER", frozenset())
    leave_group()
    of_shared = trace_job(job)
    assert of_parts.phases(8)["update"] == pytest.approx(of_shared.phases(8)["update"], abs=1024)  # norms
    assert size_of(of_parts, "optimizer states") == size_of(of_shared, "optimizer states")


@pytest.mark.parametrize("compiled", [False, True])
def test_what_ranks_of_tensor_parallelism_exchange_is_in_the_trace_and_not_among_its_kernels(compiled):
    job = rank("decoder", "TP", compile=CompileSettings(enabled=compiled), max_gradient_norm=None)
    model = trace_job(job)
    message_bytes = 8 * 16 * 64 * 4  # samples, tokens, width, bytes
    exchanged = model.exchanges(8, HEADS)
    per_block = [one for one in exchanged if one.num_bytes / one.num_messages == message_bytes]
    # attention and feed-forward network of two blocks: their sums forward, those of their inputs' gradients backward
    assert sum(one.num_messages for one in per_block) >= 2 * 4
    assert {one.collective for one in per_block} == {Collective.ALL_REDUCE}
    alone = trace_job(dataclasses.replace(job, parallelism=Parallelism()))
    assert alone.exchanges(8, HEADS) == ()


@pytest.mark.parametrize("way", ["FSDP always", "FSDP never"])
def test_shards_exchange_the_bytes_that_the_formula_tells(way, monkeypatch):
    seen = dict.fromkeys(("_allgather_base_", "_reduce_scatter_base_"), 0)
    count = LifetimeTracker.count

    def spy(self, operator, arguments, keywords, result):
        before = len(self.costs)
        count(self, operator, arguments, keywords, result)
        if len(self.costs) > before and operator.namespace == "c10d":
            assert self.costs[-1].kernels == ()  # it is no work of this device
            seen[operator.overloadpacket.__name__] += max(one.nbytes for one in arguments[:2])

    monkeypatch.setattr(LifetimeTracker, "count", spy)
    job = rank("decoder", way)
    exchanged = find_job_communication(job, trace_job(job), 8).in_pass(is_last=True)
    assert [one.num_bytes for one in exchanged] == pytest.approx(list(seen.values()), rel=0.05)  # shards are padded
