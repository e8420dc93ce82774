"""Models that run and cannot be traced, for one reason each."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

WIDTH, LENGTH = 64, 32

_library = torch.library.Library("bexplore_untraceable", "DEF")
_library.define("squash(Tensor x) -> Tensor")
_library.impl("squash", lambda x: torch.tanh(x.detach()), "CPU")  # and no fake kernel, as of a C++ extension


class _Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 4 * WIDTH)
        self.second = nn.Linear(4 * WIDTH, 10)

    def finish(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.second(hidden).mean(1)


class Looping(_Base):
    """Its rounds depend on the data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        while hidden.norm() / hidden.numel() ** 0.5 > 0.01:
            hidden = torch.tanh(hidden) * 0.5
        return self.finish(hidden)


class Branching(_Base):
    """Reads a number of its own parameters' products and takes a branch by it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.gelu(self.first(x))
        sizes = [int(one) for one in hidden.abs().amax((1, 2)).ceil().tolist()]
        return self.finish(hidden.sigmoid() if max(sizes) > 0 else hidden)


class SparseTable(_Base):
    """A table whose gradients are sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2000, WIDTH, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = (x[..., 0].abs() * 500).long().clamp(max=1999)
        return self.finish(F.gelu(self.first(self.table(places))))


class SparseGraph(_Base):
    """A graph as a sparse matrix."""

    def __init__(self) -> None:
        super().__init__()
        graph = torch.rand(LENGTH, LENGTH)
        self.register_buffer("graph", (graph * (graph > 0.8)).to_sparse())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = torch.sparse.mm(self.graph, x.transpose(0, 1).flatten(1))
        return self.finish(F.gelu(self.first(mixed.view(LENGTH, -1, WIDTH).transpose(0, 1))))


class _TanhOfNumpy(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        result = torch.from_numpy(np.tanh(x.detach().numpy()))
        context.save_for_backward(result)
        return result

    @staticmethod
    def backward(context, gradient):
        (result,) = context.saved_tensors
        return torch.from_numpy(gradient.numpy() * (1 - result.numpy() ** 2))


class OfNumpy(_Base):
    """A function of its own, which computes with numpy."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.finish(_TanhOfNumpy.apply(self.first(x)))


class Scaling(_Base):
    """Asks numpy for a number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        return self.finish(F.gelu(hidden) / float(np.abs(hidden.detach().numpy()).max()))


class _Squash(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        result = torch.ops.bexplore_untraceable.squash(x)
        context.save_for_backward(result)
        return result

    @staticmethod
    def backward(context, gradient):
        (result,) = context.saved_tensors
        return gradient * (1 - result * result)


class Opaque(_Base):
    """An operator that nothing is known of."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.finish(_Squash.apply(self.first(x)))


class Updating(Looping):
    """A large table: at small sizes the update is the highest moment, at large ones a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(20_000, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + self.table[:1])


class Normalizing(Looping):
    """A batch of one sample is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.norm(x.mean(1))[:, None].expand(-1, LENGTH, -1))


class Comparing(Looping):
    """Compares all samples with each other: memory grows with the square of the size."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = super().forward(x)
        return (output @ output.T).softmax(-1) @ output


def samples(micro_batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(micro_batch_size, LENGTH, WIDTH), torch.randint(10, (micro_batch_size,))


def loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, targets)
