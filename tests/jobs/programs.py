"""Small programs of "the user", good and bad, that the tests train by import path."""

from __future__ import annotations

import os
import signal
import time
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

WIDTH = 32


class Perceptron(nn.Module):
    """Two layers; `hook(x)` is called in the forward pass, outside the compiler where it is disabled."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def perceptron() -> nn.Module:
    return Perceptron()


class Counted(nn.Module):
    """Identical blocks that are asked for by number, so that none of them may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(8))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number in range(8):
            x = torch.relu(self.blocks[number](x))
        return self.head(x)


def counted() -> nn.Module:
    return Counted()


def samples(micro_batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(micro_batch_size, WIDTH), torch.randint(4, (micro_batch_size,))


def at_most_fifty(micro_batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A data set that ends."""
    return samples(min(micro_batch_size, 50))


def always_eight(micro_batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return samples(8)


def filled_up_to_eight(micro_batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return samples(-(-micro_batch_size // 8) * 8)


class Captioner(nn.Module):
    """Text of any length beside a picture of one size."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(64, WIDTH)
        self.picture = nn.Linear(1, WIDTH)

    def forward(self, picture: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        return self.words(text) + self.picture(torch.relu(picture).mean(1, keepdim=True))[:, None]


def captioner() -> nn.Module:
    return Captioner()


def captioned_pictures(micro_batch_size: int, sequence_length: int) -> tuple:
    text = torch.randint(64, (micro_batch_size, sequence_length))
    return (torch.randn(micro_batch_size, 2**16), text), text


def caption_loss(outputs: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), text.flatten() % WIDTH)


class Graphs:
    """A batch of a kind of its own, as libraries for graphs have."""

    def __init__(self, nodes: torch.Tensor) -> None:
        self.nodes = nodes
        self.device = torch.device("meta")

    def to(self, device: torch.device) -> Graphs:
        self.nodes, self.device = self.nodes.to(device), device
        return self


def graphs(micro_batch_size: int) -> Graphs:
    return Graphs(torch.randn(micro_batch_size, WIDTH))


def num_graphs(batch: Graphs) -> int:
    return len(batch.nodes)


def cross_entropy(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, targets)


class Masked(Perceptron):
    """Adds a mask that is the same number everywhere and has the size of the batch, as attention masks are."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(x.shape[0], WIDTH, device=x.device)
        return super().forward(x + (1.0 - mask) * -1e9)


def masked() -> nn.Module:
    return Masked()


class Convolutional(nn.Module):
    """A small vision network with batch statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def convolutional() -> nn.Module:
    return Convolutional()


class _Residual(nn.Module):
    """Takes a tensor and a number by name, and has batch statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor, *, debug: float, mask: torch.Tensor) -> torch.Tensor:
        return x + self.norm(torch.relu(self.layer(x) * debug)) * mask


class Stack(nn.Module):
    """Three blocks of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Residual() for _ in range(3))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = x.mean(0)
        for block in self.blocks:
            x = block(x, debug=0.5, mask=mask)
        return self.head(x)


def stack() -> nn.Module:
    return Stack()


class TakesGraphs(Perceptron):
    def forward(self, batch: Graphs) -> torch.Tensor:
        return super().forward(batch.nodes).square().mean()


def takes_graphs() -> nn.Module:
    return TakesGraphs()


def as_it_is(output: torch.Tensor, batch: Graphs) -> torch.Tensor:
    return output


class Normalized(Perceptron):
    """Batch statistics without a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.norm(x))


def normalized() -> nn.Module:
    return Normalized()


class Patches(nn.Module):
    """Cuts images into patches, as vision transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, 16, 4, stride=4)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = self.cut(x).flatten(2).transpose(1, 2)
        return self.head(F.gelu(self.norm(patches)).mean(dim=1))


def patches() -> nn.Module:
    return Patches()


def images(micro_batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(micro_batch_size, 3, 16, 16), torch.randint(4, (micro_batch_size,))


class ShapeError(Perceptron):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.reshape(x.shape[0], WIDTH // 2, 3))


def shape_error() -> nn.Module:
    return ShapeError()


class BreaksAboveFour(Perceptron):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        refuse_above_four(x)
        return super().forward(x)


@torch.compiler.disable
def refuse_above_four(x: torch.Tensor) -> None:
    if x.shape[0] > 4:
        raise ValueError(f"this model was written for 4 samples, not for {x.shape[0]}")


def breaks_above_four() -> nn.Module:
    return BreaksAboveFour()


class NotANumber(Perceptron):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * float("nan")


def not_a_number() -> nn.Module:
    return NotANumber()


class Greedy(Perceptron):
    """Takes 64 MiB a sample in the forward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + take_memory(x.shape[0], x.device).sum() * 0


@torch.compiler.disable
def take_memory(samples: int, device: torch.device) -> torch.Tensor:
    return torch.ones(samples, 16 * 2**20, device=device)


def greedy() -> nn.Module:
    return Greedy()


class Keeper(Perceptron):
    """Takes memory as the greedy one does, and keeps some of it for good where there are many samples."""

    kept: ClassVar[list[torch.Tensor]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 50:
            self.kept.append(take_memory(1, x.device))
        return super().forward(x) + take_memory(x.shape[0], x.device).sum() * 0


def keeper() -> nn.Module:
    return Keeper()


class Colossus(Perceptron):
    """Has weights of 8 GiB, which nobody gets to touch under a small budget."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.empty(2 * 2**30))


def colossus() -> nn.Module:
    return Colossus()


class Hoarder(Perceptron):
    """Takes memory in each pass that is no tensor's, and gives it back."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        take_other_memory()
        return super().forward(x)


@torch.compiler.disable
def take_other_memory() -> None:
    bytearray(b"x") * (96 * 2**20)


def hoarder() -> nn.Module:
    return Hoarder()


class Breaking(Perceptron):
    """Has one graph break."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first(x))
        torch._dynamo.graph_break()
        return self.second(hidden)


def breaking() -> nn.Module:
    return Breaking()


class ReadsInLoop(Perceptron):
    """Reads a value of each of two layers in a loop, as a step that logs does; torch leaves the function to Python."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = 0.0
        for layer in (self.first, self.second):
            x = layer(torch.relu(x))
            total += x.mean().item()
        return x


def reads_in_loop() -> nn.Module:
    return ReadsInLoop()


class Ends(Perceptron):
    """Ends its process in the forward pass, in a way chosen by the environment."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        end_process(os.environ["TEST_END"])
        return super().forward(x)


@torch.compiler.disable
def end_process(how: str) -> None:
    if how == "exit":
        print("last words of the worker", flush=True)
        os._exit(7)
    if how == "hang":
        time.sleep(3600)
    os.kill(os.getpid(), getattr(signal, how))


def ends() -> nn.Module:
    return Ends()


class Recompiles(Perceptron):
    """Needs another program at every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return super().forward(x) * self.passes


def recompiles() -> nn.Module:
    torch._dynamo.config.recompile_limit = 4  # fewer than the passes of any probe, however well their times agree
    return Recompiles()


class CompilesInEachPass(Recompiles):
    """As above, and nothing says how often that may be."""


def compiles_in_each_pass() -> nn.Module:
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.assume_static_by_default = True
    torch._dynamo.config.automatic_dynamic_shapes = False  # so that a number that changes stays a constant
    return CompilesInEachPass()


class Late(Perceptron):
    """Is another program once it is late."""

    is_late = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x * 2 if self.is_late else x)


class Uncompiled(Perceptron):
    """Asks torch.compile to leave it alone."""

    @torch.compiler.disable
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


def uncompiled() -> nn.Module:
    return Uncompiled()


@torch.compiler.disable
def uncompiled_loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, targets)


class _InGraphMemory(torch.autograd.Function):
    """A product whose backward pass leaves the gradient of the weight where every replay of a CUDA graph leaves it."""

    @staticmethod
    def forward(ctx, x, weight, layer):
        ctx.save_for_backward(x)
        ctx.layer = layer
        return x @ weight.T

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        layer = ctx.layer
        own = layer.weight.grad
        if own is not None and own.data_ptr() == layer.memory.data_ptr():
            raise RuntimeError("accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run")
        torch.mm(gradient.T, x, out=layer.memory)
        return None, layer.memory.detach(), None


class Graphed(nn.Module):
    """Behaves as a program of one layer that is recorded into CUDA graphs; `unused` never gets a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, WIDTH))
        self.unused = nn.Parameter(torch.randn(4))
        self.memory = torch.empty(4, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _InGraphMemory.apply(x, self.weight, self)


def graphed() -> nn.Module:
    return Graphed()


class PlainStep:
    """A whole step, as short as it can be."""

    def __init__(self) -> None:
        self.modules = [Perceptron()]
        self.optimizers = torch.optim.SGD(self.modules[0].parameters(), lr=0.1)

    def make_batch(self, micro_batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return samples(micro_batch_size)

    def forward_backward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        loss = cross_entropy(self.modules[0](batch[0]), batch[1])
        loss.backward()
        return loss.detach()

    def update(self) -> None:
        self.optimizers.step()
        self.optimizers.zero_grad()


class LateAtTheSeventhPass(PlainStep):
    def __init__(self) -> None:
        self.modules = [Late()]
        self.optimizers = torch.optim.SGD(self.modules[0].parameters(), lr=0.1)
        self.passes = 0

    def forward_backward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        self.passes += 1
        self.modules[0].is_late = self.passes >= 7
        return super().forward_backward(batch)


class NoBackward(PlainStep):
    def forward_backward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return cross_entropy(self.modules[0](batch[0]), batch[1]).detach()


class ZeroGradients(PlainStep):
    def forward_backward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        loss = 0 * cross_entropy(self.modules[0](batch[0]), batch[1])
        loss.backward()
        return loss.detach()


class IgnoresItsBatch(PlainStep):
    def forward_backward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        loss = self.modules[0](torch.ones_like(batch[0])).square().mean()
        loss.backward()
        return loss.detach()


class InBatchNegatives(PlainStep):
    """The other samples are the wrong answers: of a single sample there is nothing to learn."""

    def forward_backward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        towers = self.modules[0](batch[0])
        loss = cross_entropy(towers @ towers.T, torch.arange(len(towers), device=towers.device))
        loss.backward()
        return loss.detach()


class Margin(PlainStep):
    """Two samples in ten violate the margin."""

    def forward_backward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        far = batch[0].mean(dim=1) - 0.15  # of a mean of deviation 0.18
        loss = (self.modules[0](batch[0]).square().mean(dim=1) * far.relu()).mean()
        loss.backward()
        return loss.detach()


class ConstantData(PlainStep):
    def make_batch(self, micro_batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(micro_batch_size, WIDTH), torch.zeros(micro_batch_size, dtype=torch.long)


class NewHead(PlainStep):
    """A head of zeros: every batch has the same loss, and a gradient of its own."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.modules[0].second.weight)
        nn.init.zeros_(self.modules[0].second.bias)


class StepsInItsPasses(PlainStep):
    """Parameters are updated as soon as their gradients are there, which then go."""

    def __init__(self) -> None:
        super().__init__()
        for parameter in self.modules[0].parameters():
            parameter.register_post_accumulate_grad_hook(self._update_one)

    def _update_one(self, parameter: torch.Tensor) -> None:
        with torch.no_grad():
            parameter.sub_(parameter.grad, alpha=0.1)
        parameter.grad = None


class UnlistedModules(PlainStep):
    """Compiles by itself, and lists nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.own_optimizer = self.modules[0], self.optimizers
        self.modules, self.optimizers = [], []

    def forward_backward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        loss = cross_entropy(self.own(batch[0]), batch[1])
        loss.backward()
        return loss.detach()

    def update(self) -> None:
        self.own_optimizer.step()
        self.own_optimizer.zero_grad()


class Adversaries(PlainStep):
    """Two modules against each other, each with an optimizer of its own; a part is frozen."""

    def __init__(self) -> None:
        self.maker, self.judge = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.modules = {"maker": self.maker, "judge": self.judge, "frozen": self.frozen}
        self.optimizers = [torch.optim.Adam(m.parameters()) for m in (self.maker, self.judge)]

    def forward_backward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        fake = self.maker(self.frozen(batch[0]))
        wanted = F.softplus(-self.judge(fake)).mean()
        wanted.backward(inputs=list(self.maker.parameters()))
        told = F.softplus(self.judge(fake.detach())).mean() + F.softplus(-self.judge(batch[0])).mean()
        told.backward()
        return (wanted + told).detach()

    def update(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()


class FailingUpdate(PlainStep):
    def update(self) -> None:
        raise RuntimeError("this step was written without an update")


class ScaledStep:
    """A step with a gradient scaler, whose first gradients overflow."""

    def __init__(self) -> None:
        self.modules = [nn.Linear(WIDTH, 1)]
        self.optimizers = torch.optim.AdamW(self.modules[0].parameters())
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)

    def make_batch(self, micro_batch_size: int) -> torch.Tensor:
        return torch.full((micro_batch_size, WIDTH), 1e34)

    def forward_backward(self, batch: torch.Tensor) -> torch.Tensor:
        loss = self.modules[0](batch).mean()
        self.scaler.scale(loss).backward()
        return loss.detach()

    def update(self) -> None:
        self.scaler.step(self.optimizers)
        self.scaler.update()
        self.optimizers.zero_grad()


def scaled_step() -> ScaledStep:
    return ScaledStep()
