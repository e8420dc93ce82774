"""Repeated blocks as nested regions of the shared program."""

from __future__ import annotations

import subprocess
import sys

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
