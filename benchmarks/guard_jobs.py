"""The programs of the guard's benchmark: one as it is, and the same with one change each, as a bad commit would make.

Each change says which fact must name it and a text that the finding must contain.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

WIDTH = 64
NUM_CLASSES = 8


class Block(nn.Module):
    """A gated feed-forward block; `change` plants one regression."""

    def __init__(self, width: int, change: str) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.gate = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.change = change
        self.register_buffer("mix", torch.eye(4 * width, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.change == "upcast":
            with torch.autocast(x.device.type, enabled=False):
                hidden = self.up(x.float())
        else:
            hidden = self.up(x)
        if self.change == "saved":
            hidden = hidden + torch.sin(hidden @ self.mix)
        hidden = F.gelu(hidden)
        if self.change == "fusion":
            hidden = opaque(hidden)
        if self.change == "break":
            torch._dynamo.graph_break()
        if self.change == "recompile":
            hidden = hidden * (1.0 + 1e-6 * len(range(x.shape[0])))
        if self.change == "constant":
            hidden = hidden.reshape(16, -1)
        return x + self.down(hidden * self.gate(x))


@torch.library.custom_op("guard_bench::opaque", mutates_args=())
def opaque(x: torch.Tensor) -> torch.Tensor:
    """A copy that the compiler cannot look into, as a kernel of one's own is."""
    return x.clone()


@opaque.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


opaque.register_autograd(lambda _, gradient: gradient)


def build(change: str = "", num_blocks: int = 2) -> nn.Module:
    width = 2 * WIDTH if change == "hidden" else WIDTH
    blocks = [Block(width, change if index == 0 else "") for index in range(num_blocks)]
    return nn.Sequential(nn.Linear(WIDTH, width), *blocks, nn.Linear(width, NUM_CLASSES))


def samples(micro_batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(micro_batch_size, WIDTH), torch.randint(NUM_CLASSES, (micro_batch_size,))


def loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.float(), targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A change, the fact that must find it, and what the finding must say."""

    change: str
    title: str
    fact: str
    says: str


PLANTED = (
    Planted(
        change="break", title="an extra graph break", fact="num_graph_breaks", says="graph_break()` at guard_jobs.py:"
    ),
    Planted(change="fusion", title="a lost fusion", fact="num_kernels", says="lost fusion: "),
    Planted(
        change="upcast",
        title="a float32 upcast of activations",
        fact="saved_activation_bytes",
        says="new: addmm float32[b, 256] at guard_jobs.py:",
    ),
    Planted(
        change="saved",
        title="one more saved activation",
        fact="num_saved_activations",
        says="new: mm bfloat16[b, 256] at guard_jobs.py:",
    ),
    Planted(change="hidden", title="a doubled hidden size", fact="flops", says="new: addmm bfloat16[b, 512]"),
    Planted(
        change="recompile",
        title="a new recompilation per size",
        fact="num_recompiles",
        says="size mismatch",
    ),
    Planted(
        change="constant",
        title="a batch size made constant in a reshape",
        fact="program",
        says="(guard_jobs.py:",
    ),
)
