"""The program that all sizes of a search share: its first mode, its convolutions, its repeated blocks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bexplore.engine.protocol.messages import RunProbe, SharedMode
from bexplore.job import Precision
from bexplore.measurement.probe import Outcome, Probe
from tests.builders import imported_job

NESTED, UNBACKED, DYNAMIC, STATIC = SharedMode


@pytest.mark.parametrize(("device", "expected"), [("cpu", NESTED), ("cuda:0", DYNAMIC)])
def test_a_search_begins_with_the_first_mode_of_its_device(device, expected, run_on):
    runner = run_on(imported_job(device=device))

    assert runner._request(RunProbe, Probe(number=0, micro_batch_size=1)).shared_mode is expected


@pytest.mark.parametrize("precision", [Precision.FLOAT32, Precision.AUTOCAST_BFLOAT16])
def test_one_program_with_convolutions_serves_one_sample_a_few_and_many(run_on, precision):
    runner = run_on(imported_job("patches", batch="images", backend="inductor", precision=precision))

    observations = [runner(Probe(number=0, micro_batch_size=size, max_passes=3)) for size in (4, 1, 40)]

    assert [o.outcome for o in observations] == [Outcome.MEASURED] * 3, observations[0].reason
    assert [o.num_graphs for o in observations] == [1, 0, 0]
    assert observations[0].details["shared_mode"] == "unbacked"


STACK = """
import sys
import torch
import torch._higher_order_ops
from bexplore.engine.worker.compilation import nest

operator = type(torch._higher_order_ops.invoke_subgraph)
trace, traced = operator.gen_schema, []
operator.gen_schema = lambda *arguments: traced.append(1) or trace(*arguments)

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        return x + torch.relu(self.linear(x))

model, x = torch.nn.Sequential(*[Block() for _ in range(int(sys.argv[1]))]), torch.randn(4, 8)
expected = model(x).sum()
nest([Block])
nest([])
loss = torch.compile(model, backend="aot_eager")(x).sum()
loss.backward()
assert torch.allclose(loss, expected) and all(p.grad is not None for p in model.parameters())
print(len(traced))
"""


def num_traced_schemas(num_blocks: int) -> int:
    command = [sys.executable, "-c", STACK, str(num_blocks)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_what_a_region_writes_to_is_found_once_for_all_blocks():
    assert num_traced_schemas(9) == num_traced_schemas(3) > 0
