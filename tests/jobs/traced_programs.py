"""Programs that a trace meets: with graph breaks, fixed sizes, sizes that depend on data, hidden reserves."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn

WIDTH = 64
LENGTH = 32


class _Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 4 * WIDTH)
        self.second = nn.Linear(4 * WIDTH, 10)

    def finish(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.second(hidden).mean(1), targets)


class Breaking(_Base):
    """A graph break between two halves."""

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden = F.gelu(self.first(x))
        torch._dynamo.graph_break()
        return self.finish(hidden * hidden.sigmoid(), targets)


class ChangingInPlace(_Base):
    """Changes in place what the half before a graph break returned."""

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden = F.gelu(self.first(x))
        torch._dynamo.graph_break()
        hidden[:, 0] = 0.5
        return self.finish(hidden, targets)


class Solved(_Base):
    """A differential equation, solved by Runge-Kutta steps: its weights are larger than a few samples' activations."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Sequential(nn.Linear(WIDTH + 1, 256), nn.Softplus(), nn.Linear(256, WIDTH))

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        def slope(time: float, state: torch.Tensor) -> torch.Tensor:
            return self.slope(torch.cat([state, torch.full_like(state[:, :1], time)], 1))

        state = x[:, 0]
        for step in range(8):
            first = slope(step / 8, state)
            second = slope(step / 8 + 1 / 16, state + first / 16)
            third = slope(step / 8 + 1 / 16, state + second / 16)
            state = state + (first + 2 * second + 2 * third + slope(step / 8 + 1 / 8, state + third / 8)) / 48
        return self.finish(self.first(state)[:, None], targets)


class Reading(_Base):
    """Reads a number that is no size out of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.finish(F.gelu(self.first(x)) * self.scale.item(), targets)


class Copying(_Base):
    """Copies of a layer, as `nn.TransformerEncoder` makes them."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, WIDTH, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.finish(self.first(self.encoder(x)), targets)


class Transposed(_Base):
    """Normalizes images whose dimensions were exchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(2))
        self.mixed = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        for norm in self.norms:
            x = self.mixed(norm(x.mT).mT)
        return self.finish(self.first(x), targets)


class Highest(_Base):
    """Takes the highest of each row, whose gradient counts where it stands."""

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.finish(self.first(x).amax(1, keepdim=True), targets)


class Penalty(_Base):
    """Has a gradient in the middle of its forward pass, and goes on with it."""

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        for _ in range(3):
            (slope,) = torch.autograd.grad(F.gelu(self.first(x)).sum(), x, create_graph=True)
            x = x + slope
        return self.finish(F.gelu(self.first(x)), targets)


class Scanning(_Base):
    """Reads its steps one by one, so that the gradients of all steps are added."""

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        decay, state, states = x.sigmoid(), torch.zeros_like(x[:, 0]), []
        for step in range(LENGTH):
            state = decay[:, step] * state + x[:, step]
            states.append(state)
        return self.finish(torch.stack(states, 1), targets)


class Viewing(_Base):
    """Uses one tensor under several shapes: a gradient that is a view is added to in new memory."""

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        products = F.gelu(x.mT @ x) + torch.softmax(x.mT, -1) @ x
        return self.finish(F.gelu(x) * x @ products * x, targets)


class Selecting(_Base):
    """Selects in a way that has a gradient of zeros beside what was selected."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        first = torch.tensor([0], device=x.device)
        ways = {
            "gather": lambda: x.gather(1, x.detach().argsort(1)[:, :1]),
            "max": lambda: x.max(1, keepdim=True).values,
            "topk": lambda: x.topk(2, 1).values,
            "index_select": lambda: x.index_select(1, first),
            "cummax": lambda: x.cummax(1).values,
            "index": lambda: x[:, first],
        }
        return F.cross_entropy(ways[self.way]().mean(1)[:, :10], targets)


class Tied(_Base):
    """Two layers of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(WIDTH, WIDTH)
        self.right = nn.Linear(WIDTH, WIDTH)
        self.right.weight = self.left.weight

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden = self.right(self.left(x.to(self.left.weight.dtype)))
        return self.finish(F.gelu(self.first(hidden)), targets)


def converted() -> nn.Module:
    """Converted by the user's own code, twice, as training scripts do."""
    return Tied().to("cpu").double()


class ReadingWhileBuilt(Tied):
    """Takes its rates out of a tensor, as vision models do, and leaves a tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = torch.linspace(0, 0.1, 2).tolist()
        self.scale = torch.ones(WIDTH)

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return super().forward(F.dropout(x, self.rates[0]) * self.scale, targets)


class Fixing(_Base):
    """Python code that fixes the number of samples."""

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        count = len(list(range(x.shape[0])))
        return self.finish(F.gelu(self.first(x)).view(count, LENGTH, -1), targets)


class DataDependent(_Base):
    """A size that depends on values."""

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        return self.second(hidden[hidden.sum(-1) > 0]).square().mean()


class Checking(_Base):
    """Checks of labels and of results, and a number that grows with the samples."""

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if targets.max() >= 10 or len(targets.tolist()) == 0:
            raise ValueError("labels out of range")
        hidden = F.gelu(self.first(x))
        if torch.isnan(hidden).any():
            hidden = torch.nan_to_num(hidden).sin().cos().tanh()
        padding = torch.ones_like(targets).sum().item()
        return self.finish(hidden + hidden.new_zeros(padding, 1, 1), targets)


class LoopOfExperts(_Base):
    """Experts that get their own tokens, found by `nonzero`; which experts have any is read, too."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleDict({str(number): nn.Linear(WIDTH, WIDTH) for number in range(4)})

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1)
        chosen = self.router(tokens).topk(2).indices
        hits = torch.bincount(chosen.flatten(), minlength=4).nonzero().flatten()
        mixed = torch.zeros_like(tokens)
        for hit in hits:
            rows, _ = torch.where(chosen == hit)
            mixed = mixed.index_add(0, rows, F.gelu(self.experts[f"{hit}"](tokens[rows])))
        return self.finish(self.first(mixed).view(*x.shape[:2], -1), targets)


class GroupedExperts(_Base):
    """Experts in one product of groups, in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(4, WIDTH, WIDTH) / 8)

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1)
        ends = torch.arange(1, 5, dtype=torch.int32, device=x.device) * (len(tokens) // 4)
        return self.finish(
            self.first(torch._grouped_mm(tokens, self.weights, offs=ends)).view(*x.shape[:2], -1), targets
        )


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Deep(_Base):
    """Ten identical blocks, of which the first two keep less than the others."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block() for _ in range(10))

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.finish(self.first(x), targets)


class Contrastive(_Base):
    """Every sample is compared with every other."""

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden = F.normalize(self.first(x).mean(1))
        return F.cross_entropy(hidden @ hidden.T, torch.arange(len(hidden), device=x.device))


class Recurrent(_Base):
    """A layer whose kernel keeps memory of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.finish(self.first(self.recurrent(x)[0]), targets)


def samples(micro_batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(micro_batch_size, LENGTH, WIDTH), torch.randint(10, (micro_batch_size,))


def capped_samples(micro_batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """No more than eight samples, whatever is asked for."""
    return samples(min(micro_batch_size, 8))


def named_samples(micro_batch_size: int) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """Samples of which only the names grow in number."""
    return *samples(2), ["name"] * micro_batch_size


class Convolutional(nn.Module):
    """Convolutions whose weights are large beside their images."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 64, 3, padding=1)
        self.second = nn.Conv2d(64, 128, 3, padding=1)
        self.head = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.second(torch.relu(self.first(x))))
        return F.cross_entropy(self.head(hidden.mean((2, 3))), targets)


class Strided(nn.Module):
    """A convolution with a stride, whose gradient is spread out over large images."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 64, 3, padding=1)
        self.second = nn.Conv2d(64, 64, 3, stride=2, padding=1)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = F.interpolate(x, scale_factor=4.0)
        hidden = torch.relu(self.second(torch.relu(self.first(x))))
        return F.cross_entropy(self.head(hidden.mean((2, 3))), targets)


def images(micro_batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(micro_batch_size, 3, 8, 8), torch.randint(10, (micro_batch_size,))


class Speech(_Base):
    """The CTC loss of padded targets, whose lengths are tensors."""

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        log_probs = self.second(F.gelu(self.first(x))).log_softmax(-1).transpose(0, 1)
        lengths = torch.full((x.size(0),), LENGTH), torch.full((x.size(0),), targets.size(1))
        return F.ctc_loss(log_probs, targets, *lengths)


def utterances(micro_batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(micro_batch_size, LENGTH, WIDTH), torch.randint(1, 10, (micro_batch_size, 12))


class Lists(_Base):
    """Splits rows by a list of the lengths of its samples, each as long as the others on average."""

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        lengths = tuple((x.flatten(1).argmax(1) * 0 + LENGTH - 2 * (targets % 2)).tolist())
        rows = F.gelu(self.first(x)).flatten(0, 1)[: sum(lengths)]
        means = [one.mean(0) for one in rows.split(lengths)]
        return F.cross_entropy(self.second(torch.stack(means)), targets)


class Nested(_Base):
    """Samples of several lengths in one nested tensor."""

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        parts = torch.nested.as_nested_tensor([one[: LENGTH // 2] for one in x], layout=torch.jagged)
        return self.finish(torch.nested.to_padded_tensor(self.first(parts), 0.0), targets)


class _Step:
    """A step of the user's own, whose loss is that of `Deep`."""

    def __init__(self) -> None:
        self.modules = [Deep()]
        self.optimizer = torch.optim.SGD(self.modules[0].parameters(), lr=0.1)

    def make_batch(self, micro_batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return samples(micro_batch_size)

    def forward_backward(self, batch: tuple[torch.Tensor, torch.Tensor], loss_scale: float = 1.0) -> torch.Tensor:
        loss = self.modules[0](*batch)
        (loss * loss_scale).backward()
        return loss.detach()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


class ByHistory(_Step):
    """L-BFGS, which evaluates its loss within an update."""

    def __init__(self, line_search: str | None = None) -> None:
        super().__init__()
        self.optimizer = torch.optim.LBFGS(
            self.modules[0].parameters(), lr=0.01, max_iter=3, history_size=12, line_search_fn=line_search
        )

    def forward_backward(self, batch: tuple[torch.Tensor, torch.Tensor], loss_scale: float = 1.0) -> torch.Tensor:
        self.batch = batch
        return super().forward_backward(batch, loss_scale)

    def update(self) -> None:
        def evaluate() -> torch.Tensor:
            self.optimizer.zero_grad()
            return super(ByHistory, self).forward_backward(self.batch)

        self.optimizer.step(evaluate)
        self.optimizer.zero_grad()


class Averaging(_Step):
    """Averages its weights: in a model that no attribute `modules` names, or in tensors that its first update makes."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.average = copy.deepcopy(self.modules[0]) if way == "model" else {}

    def update(self) -> None:
        super().update()
        new = dict(self.modules[0].named_parameters())
        if self.way == "model":
            average = dict(self.average.named_parameters())
        else:
            average = self.average = self.average or {name: one.detach().clone() for name, one in new.items()}
        with torch.no_grad():
            for name, one in new.items():
                average[name].lerp_(one, 0.1)


class Carrying(_Step):
    """Carries what it made of a batch to the next pass."""

    carried: torch.Tensor | None = None

    def forward_backward(self, batch: tuple[torch.Tensor, torch.Tensor], loss_scale: float = 1.0) -> torch.Tensor:
        made = batch[0].repeat(1, 1, 8)
        self.carried = made if self.carried is None else made + self.carried
        return super().forward_backward(batch, loss_scale)


class Replaying(_Step):
    """Keeps all that it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def forward_backward(self, batch: tuple[torch.Tensor, torch.Tensor], loss_scale: float = 1.0) -> torch.Tensor:
        self.seen.append(batch[0] * 2)
        return super().forward_backward(batch, loss_scale)


class Refusing(_Step):
    """Updates nothing where a loss is not a number."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = torch.optim.AdamW(self.modules[0].parameters())

    def update(self) -> None:
        if torch.isnan(self.modules[0].first.weight.grad).any():
            return
        super().update()
