"""One rank of N on a GPU that is not there: its program is the GPU's, and ranks share memory as on any device."""

from __future__ import annotations

import functools

import pytest

from bexplore.actions.trace import trace_job
from bexplore.config.load import load_config

pytestmark = pytest.mark.gpu_trace

JOB = """\
train_input: {{batch_size: 64, micro_batch_size: explore}}
model:
  name: gpt2
  vocab_size: {vocab_size}
  hidden_size: {hidden_size}
  num_hidden_layers: 2
  num_heads: 4
  max_position_embeddings: 64
  mixed_precision: true
  fp16_type: bfloat16
explore: {{parallelism: {parallelism}}}
"""
SIZE = 4  # samples
WEIGHT_BYTES = 4
STATES = 4  # a weight, its gradient and both states of AdamW


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """The trace of a rank on an H100, by parallelism and number of devices."""

    @functools.cache
    def trace(parallelism: str, num_devices: int, vocab_size: int = 4096, hidden_size: int = 256):
        folder = tmp_path_factory.mktemp("job")
        path = folder / "job.yaml"
        path.write_text(JOB.format(parallelism=parallelism, vocab_size=vocab_size, hidden_size=hidden_size))
        [record] = trace_job(
            load_config(path),
            num_devices=(num_devices,),
            micro_batch_sizes=(SIZE,),
            device_name="h100",
            model_dir=str(folder / "model"),
        )
        assert (record["device"], record["device_name"]) == ("cuda", "NVIDIA H100 80GB HBM3")
        assert record["notes"] == []
        return record

    return trace


def peak(record) -> int:
    return record["peak_memory_bytes"][str(SIZE)]


def test_shards_of_twice_the_ranks_free_half_of_what_the_shards_held(traced):
    two, four = traced("{}", 2), traced("{}", 4)
    freed = STATES * WEIGHT_BYTES * two["num_parameters"] * (1 / 2 - 1 / 4)
    assert peak(two) - peak(four) == pytest.approx(freed, rel=0.3)  # of the gradients one copy is whole meanwhile


def test_copies_of_shards_hold_what_the_shards_of_one_copy_hold(traced):
    shards, copies = traced("{}", 2), traced("{data_parallel_replicate_degree: 2, data_parallel_shard_degree: 2}", 4)
    assert 0 <= peak(copies) - peak(shards) < WEIGHT_BYTES * shards["num_parameters"]
    assert copies["parallelism"]["data_parallel_shard_degree"] == 2


COPIES = "{data_parallel_replicate_degree: 2, data_parallel_shard_degree: 1}"


def test_a_copy_of_ddp_holds_one_more_copy_of_the_gradients(traced):
    small = {"vocab_size": 256, "hidden_size": 64}  # all parameters in the first bucket, of 1 MiB: one program
    one, four = traced("{}", 1, **small), traced(COPIES, 4, **small)

    assert WEIGHT_BYTES * one["num_parameters"] < 2**20
    assert peak(four) - peak(one) == WEIGHT_BYTES * one["num_parameters"]


def test_the_program_of_a_larger_copy_is_split_at_its_buckets(traced):
    one, four = traced("{}", 1), traced(COPIES, 4)

    # Autograd adds the last program's gradient of the shared embedding to the first's in place; one program holds both.
    assert 0 < peak(four) - peak(one) < WEIGHT_BYTES * one["num_parameters"]


def test_ranks_that_share_matrices_hold_less_of_weights_and_activations(traced):
    one, two = traced("{}", 1), traced("{data_parallel_shard_degree: 1, tensor_parallel_degree: 2}", 2)
    assert peak(two) < peak(one)
    assert two["flops_per_sample"] < one["flops_per_sample"]
