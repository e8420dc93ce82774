"""Models of many fields for the benchmark of the trace: any class of the transformers library, and plain torch."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, LENGTH, VOCABULARY, CLASSES = 64, 64, 512, 10


def library(kind: str, config: Mapping[str, Any], attention: str | None = None) -> nn.Module:
    """A class of the library with its configuration; a part of it, such as a backbone, is a mapping with a `kind`."""
    model_class = getattr(__import__("transformers"), kind)
    own = model_class.config_class(**{name: _part(value) for name, value in config.items()})
    if attention:
        own._attn_implementation = attention
    return model_class(own)


def _part(value: Any) -> Any:
    if not isinstance(value, Mapping) or "kind" not in value:
        return value
    rest = {name: _part(part) for name, part in value.items() if name != "kind"}
    return getattr(__import__("transformers"), value["kind"])(**rest)


def drawn(micro_batch_size: int, inputs: Mapping[str, list[Any]]) -> dict[str, torch.Tensor]:
    """A batch by its tensors: `[highest, *shape]` draws integers below the highest, `[None, *shape]` numbers."""
    return {name: _draw(micro_batch_size, *form) for name, form in inputs.items()}


def _draw(micro_batch_size: int, highest: int | None, *shape: int) -> torch.Tensor:
    size = (micro_batch_size, *shape)
    return torch.randn(size) if highest is None else torch.randint(min(3, highest - 1), highest, size)


def boxes(micro_batch_size: int, image_size: int) -> dict[str, Any]:
    """Images with two boxes each."""
    labels = [
        {"class_labels": torch.randint(CLASSES, (2,)), "boxes": torch.rand(2, 4) / 4 + 0.3}
        for _ in range(micro_batch_size)
    ]
    return {"pixel_values": torch.randn(micro_batch_size, 3, image_size, image_size), "labels": labels}


def texts_with_ends(micro_batch_size: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, VOCABULARY, (micro_batch_size, LENGTH))
    return {"input_ids": ids, "start_positions": ids[:, 0] % LENGTH, "end_positions": ids[:, 1] % LENGTH}


class Recurrent(nn.Module):
    """Tags of a text by two recurrent layers of both directions."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.body = getattr(nn, kind)(WIDTH, WIDTH, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * WIDTH, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.body(self.embedding(input_ids))[0]).flatten(0, 1), labels.flatten())


class Cells(nn.Module):
    """A cell that is called at each step, with attention to the states before."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.cell = nn.Embedding(VOCABULARY, WIDTH), nn.GRUCell(WIDTH, WIDTH)
        self.head = nn.Linear(2 * WIDTH, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        state = input_ids.new_zeros(input_ids.shape[0], WIDTH, dtype=torch.float32)
        states, outputs = [], []
        for element in self.embedding(input_ids)[:, :16].unbind(1):
            state = self.cell(element, state)
            states.append(state)
            past = torch.stack(states, 1)
            weights = torch.einsum("bld,bd->bl", past, state).softmax(1)
            outputs.append(torch.cat([state, torch.einsum("bl,bld->bd", weights, past)], 1))
        return F.cross_entropy(self.head(torch.stack(outputs, 1)).flatten(0, 1), labels[:, :16].flatten())


class Recommender(nn.Module):
    """Two sparse tables, a bag of words and dense features."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = (nn.Embedding(20_000, WIDTH, sparse=True) for _ in range(2))
        self.bag = nn.EmbeddingBag(5_000, WIDTH, sparse=True)
        self.head = nn.Sequential(nn.Linear(3 * WIDTH + 16, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, users: Any, items: Any, words: Any, dense: Any, labels: Any) -> torch.Tensor:
        parts = [self.users(users), self.items(items).mean(1), self.bag(words), dense]
        return F.binary_cross_entropy_with_logits(self.head(torch.cat(parts, 1)).squeeze(1), labels.float())


class DotProducts(nn.Module):
    """Dense tables, whose vectors are multiplied with one another (DLRM)."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(2_000, WIDTH, mode="sum") for _ in range(8))
        self.bottom = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, WIDTH), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(36 + WIDTH, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, words: torch.Tensor, dense: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        bottom = self.bottom(dense)
        vectors = torch.stack([bottom, *(table(words[:, i]) for i, table in enumerate(self.tables))], 1)
        rows, columns = torch.triu_indices(9, 9, 1, device=dense.device)
        products = (vectors @ vectors.mT)[:, rows, columns]
        return F.binary_cross_entropy_with_logits(self.top(torch.cat([products, bottom], 1)).squeeze(1), labels.float())


def graphs(micro_batch_size: int) -> dict[str, torch.Tensor]:
    """Graphs of 32 nodes and 96 edges in one, as PyTorch Geometric joins them."""
    first = 32 * torch.arange(micro_batch_size)[:, None]
    edges = torch.randint(32, (2, micro_batch_size, 96)) + first
    return {"nodes": torch.randn(32 * micro_batch_size, WIDTH), "edges": edges.flatten(1), "labels": first[:, 0] % 7}


class GraphConvolutions(nn.Module):
    """Messages along edges, added up with `index_add`, attention over them; the mean of each graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.scores, self.head = nn.Linear(2 * WIDTH, 1), nn.Linear(WIDTH, CLASSES)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        source, target = edges
        for layer in self.layers:
            own = layer(nodes)
            score = F.leaky_relu(self.scores(torch.cat([own[source], own[target]], 1))).exp()
            total = torch.zeros_like(own[:, :1]).index_add(0, target, score)
            message = own[source] * (score / (total[target] + 1e-6))
            nodes = F.relu(own + torch.zeros_like(own).scatter_add(0, target[:, None].expand_as(message), message))
        return F.cross_entropy(self.head(nodes.view(labels.shape[0], -1, WIDTH).mean(1)), labels)


class SparseGraph(nn.Module):
    """A fixed graph as a sparse matrix, and features of each sample on its nodes."""

    def __init__(self) -> None:
        super().__init__()
        places = torch.randint(200, (2, 1000))
        self.register_buffer("graph", torch.sparse_coo_tensor(places, torch.rand(1000), (200, 200)).coalesce())
        self.first, self.second, self.head = nn.Linear(16, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        for layer in (self.first, self.second):
            x = F.relu(layer(x))
            x = torch.sparse.mm(self.graph, x.transpose(0, 1).flatten(1)).view(200, -1, WIDTH).transpose(0, 1)
        return F.cross_entropy(self.head(x.mean(1)), labels)


class Equivariant(nn.Module):
    """A potential of atoms, whose forces are its gradient (double backward)."""

    def __init__(self) -> None:
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(1, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU())
        self.head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 1))

    def forward(self, positions: torch.Tensor, forces: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            positions = positions.detach().requires_grad_()
            squares = (positions[:, :, None] - positions[:, None]).square().sum(-1, keepdim=True)
            energy = self.head(self.edge(squares).sum(2)).sum()
            (slope,) = torch.autograd.grad(energy, positions, create_graph=True)
        return (forces + slope).square().mean()


class Physics(nn.Module):
    """A network whose second derivatives are in the loss (double backward twice)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*(m for _ in range(4) for m in (nn.LazyLinear(128), nn.Tanh())), nn.LazyLinear(1))
        self.body(torch.zeros(2, 2))

    def forward(self, points: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        points = points.detach().requires_grad_()
        output = self.body(points.flatten(0, 1).view(-1, 2))
        (first,) = torch.autograd.grad(output.sum(), points, create_graph=True)
        (second,) = torch.autograd.grad(first[..., 0].sum(), points, create_graph=True)
        return (second[..., 0] - first[..., 1]).square().mean() + (output.view_as(values) - values).square().mean()


class PenalizedGan:
    """A GAN of images with a gradient penalty (WGAN-GP): three losses, two optimizers, a double backward pass."""

    def __init__(self) -> None:
        def up(inner: int, outer: int) -> list[nn.Module]:
            return [nn.ConvTranspose2d(inner, outer, 4, 2, 1), nn.BatchNorm2d(outer), nn.ReLU()]

        def down(inner: int, outer: int) -> list[nn.Module]:
            return [nn.Conv2d(inner, outer, 4, 2, 1), nn.LeakyReLU(0.2)]

        self.generator = nn.Sequential(*up(64, 64), *up(64, 32), *up(32, 16), nn.Conv2d(16, 3, 3, 1, 1), nn.Tanh())
        self.critic = nn.Sequential(*down(3, 32), *down(32, 64), *down(64, 128), nn.Flatten(), nn.Linear(2048, 1))
        self.modules = [self.generator, self.critic]
        self.optimizers = [torch.optim.Adam(one.parameters(), 1e-4) for one in self.modules]

    def make_batch(self, micro_batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(micro_batch_size, 3, 32, 32), torch.randn(micro_batch_size, 64, 4, 4)

    def forward_backward(self, batch: Any) -> torch.Tensor:
        real, noise = batch
        made = self.generator(noise)
        mixed = (0.5 * real + 0.5 * made.detach()).requires_grad_()
        (slope,) = torch.autograd.grad(self.critic(mixed).sum(), mixed, create_graph=True)
        penalty = (slope.flatten(1).norm(dim=1) - 1).square().mean()
        loss = self.critic(made.detach()).mean() - self.critic(real).mean() + 10 * penalty
        loss.backward()
        (-self.critic(made).mean()).backward()
        return loss.detach()

    def update(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()


class LoopOfExperts(nn.Module):
    """Experts that are called with the tokens they are given, found by `nonzero`; refuses labels out of range."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.router = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 256), nn.GELU(), nn.Linear(256, WIDTH)) for _ in range(4)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if labels.max() >= VOCABULARY:
            raise ValueError("labels out of range")
        x = self.embedding(input_ids).flatten(0, 1)
        weights, chosen = self.router(x).softmax(-1).topk(2)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, place = (chosen == number).nonzero(as_tuple=True)
            if rows.numel():
                mixed.index_add_(0, rows, expert(x[rows]) * weights[rows, place, None])
        if not torch.isfinite(mixed).all():
            raise ValueError("not finite")
        return F.cross_entropy(self.head(x + mixed), labels.flatten())


class Denoiser(nn.Module):
    """A diffusion model: noise at a drawn time, a U-Net with the time's embedding that predicts it."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU())
        self.first, self.down = nn.Conv2d(3, WIDTH, 3, padding=1), nn.Conv2d(WIDTH, 2 * WIDTH, 3, 2, 1)
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for width in (WIDTH, 2 * WIDTH, WIDTH))
        self.middle, self.scale = nn.Conv2d(2 * WIDTH, 2 * WIDTH, 3, padding=1), nn.Linear(WIDTH, 4 * WIDTH)
        self.up, self.last = nn.Conv2d(2 * WIDTH, WIDTH, 3, padding=1), nn.Conv2d(2 * WIDTH, 3, 3, padding=1)
        self.register_buffer("kept", torch.linspace(0.999, 0.98, 1000).cumprod(0))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        steps = torch.randint(1000, pixels.shape[:1], device=pixels.device)
        kept, noise = self.kept[steps].view(-1, 1, 1, 1), torch.randn_like(pixels)
        angles = steps[:, None] * torch.exp(-torch.arange(WIDTH // 2, device=pixels.device) / 8)
        time = self.scale(self.time(torch.cat([angles.sin(), angles.cos()], 1)))[..., None, None]
        first = F.silu(self.norms[0](self.first(kept.sqrt() * pixels + (1 - kept).sqrt() * noise)))
        scale, shift = time.chunk(2, 1)
        second = F.silu(self.norms[1](self.down(first)) * (1 + scale) + shift)
        second = F.interpolate(second + self.middle(second), scale_factor=2.0)
        up = F.silu(self.norms[2](self.up(second)))
        return F.mse_loss(self.last(torch.cat([up, first], 1)), noise)


class DiffusionTransformer(nn.Module):
    """Patches of an image, normalized by what the time and the class say (DiT)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.classes = nn.Conv2d(4, WIDTH, 2, 2), nn.Embedding(CLASSES, WIDTH)
        layer = functools.partial(nn.MultiheadAttention, WIDTH, 4, batch_first=True)
        self.attention = nn.ModuleList(layer() for _ in range(3))
        self.modulation = nn.ModuleList(nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 6 * WIDTH)) for _ in range(3))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 256), nn.GELU("tanh"), nn.Linear(256, WIDTH)) for _ in range(3)
        )
        self.last = nn.Linear(WIDTH, 16)

    def forward(self, latents: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        time = torch.rand(latents.shape[0], 1, 1, 1, device=latents.device)
        noise = torch.randn_like(latents)
        x = self.patches(latents * (1 - time) + noise * time).flatten(2).mT
        condition = self.classes(labels) + time.flatten(1)
        for attention, modulation, mlp in zip(self.attention, self.modulation, self.mlp, strict=True):
            a, b, c, d, e, f = modulation(condition)[:, None].chunk(6, -1)
            own = F.layer_norm(x, (WIDTH,)) * (1 + a) + b
            x = x + c * attention(own, own, own, need_weights=False)[0]
            x = x + f * mlp(F.layer_norm(x, (WIDTH,)) * (1 + d) + e)
        return F.mse_loss(self.last(x), F.unfold(noise - latents, 2, stride=2).mT)


class Volumes(nn.Module):
    """A U-Net of three dimensions with a Dice loss."""

    def __init__(self) -> None:
        super().__init__()

        def twice(inner: int, outer: int) -> nn.Module:
            layers = [nn.Conv3d(inner, outer, 3, padding=1), nn.InstanceNorm3d(outer, affine=True), nn.LeakyReLU()]
            return nn.Sequential(*layers, nn.Conv3d(outer, outer, 3, padding=1), nn.LeakyReLU())

        self.first, self.second, self.joined = twice(1, 16), twice(16, 32), twice(32, 16)
        self.up, self.head = nn.ConvTranspose3d(32, 16, 2, 2), nn.Conv3d(16, 3, 1)

    def forward(self, volumes: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        first = self.first(volumes)
        second = self.up(self.second(F.max_pool3d(first, 2)))
        found = self.head(self.joined(torch.cat([first, second], 1))).softmax(1)
        wanted = F.one_hot(labels, 3).movedim(-1, 1).float()
        return 1 - 2 * (found * wanted).sum() / (found.sum() + wanted.sum())


class Points(nn.Module):
    """Points in space, each on its own, and their maximum (PointNet)."""

    def __init__(self) -> None:
        super().__init__()
        widths = [3, 64, 128, 256]
        self.body = nn.Sequential(
            *(
                layer
                for inner, outer in itertools.pairwise(widths)
                for layer in (nn.Conv1d(inner, outer, 1), nn.BatchNorm1d(outer), nn.ReLU())
            )
        )
        self.head = nn.Sequential(nn.Linear(256, 128), nn.Dropout(0.3), nn.ReLU(), nn.Linear(128, CLASSES))

    def forward(self, points: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.body(points).amax(-1)), labels)


class Rays(nn.Module):
    """Colors along rays: encoded positions, a network, products of what is let through (NeRF)."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Linear(60, 128), nn.ReLU(), *(m for _ in range(3) for m in (nn.Linear(128, 128), nn.ReLU()))]
        self.body = nn.Sequential(*layers, nn.Linear(128, 4))

    def forward(self, origins: torch.Tensor, directions: torch.Tensor, colors: torch.Tensor) -> torch.Tensor:
        depths = torch.linspace(2, 6, 32, device=origins.device) + torch.rand(*origins.shape[:1], 32) / 8
        positions = origins[:, None] + depths[..., None] * directions[:, None]
        angles = positions[..., None] * 2.0 ** torch.arange(10, device=origins.device)
        output = self.body(torch.cat([angles.sin(), angles.cos()], -1).flatten(-2))
        opaque = 1 - torch.exp(-F.relu(output[..., 3]) / 8)
        through = torch.cumprod(1 - opaque + 1e-10, -1)
        return F.mse_loss(((opaque * through)[..., None] * output[..., :3].sigmoid()).sum(1), colors)


class Autoencoder(nn.Module):
    """A variational autoencoder of images."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 32, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(4096, 64),
        )
        self.decoder = nn.Sequential(
            nn.Linear(32, 4096),
            nn.Unflatten(1, (64, 8, 8)),
            nn.ConvTranspose2d(64, 32, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 3, 4, 2, 1),
        )

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        mean, log_variance = self.encoder(pixels).chunk(2, 1)
        output = self.decoder(mean + torch.randn_like(mean) * (log_variance / 2).exp())
        return F.mse_loss(output, pixels) + (mean.square() + log_variance.exp() - log_variance - 1).mean()


class StateSpace(nn.Module):
    """Long convolutions by the Fourier transform, with diagonal states (S4D)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.decay = nn.ParameterList(nn.Parameter(torch.rand(WIDTH, 16)) for _ in range(2))
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(WIDTH, 16, 2)) for _ in range(2))
        self.mix = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embedding(input_ids)
        length = x.shape[1]
        for decay, weights, mix in zip(self.decay, self.weights, self.mix, strict=True):
            rate = torch.complex(-decay.exp(), math.pi * torch.arange(16, device=x.device).expand_as(decay))
            powers = torch.exp(rate[..., None] * torch.arange(length, device=x.device) / length)
            kernel = torch.einsum("dn,dnl->dl", torch.view_as_complex(weights), powers).real
            spectrum = torch.fft.rfft(x.mT, 2 * length) * torch.fft.rfft(kernel, 2 * length)
            x = x + F.glu(mix(F.gelu(torch.fft.irfft(spectrum, 2 * length)[..., :length].mT)), -1)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


class Flow(nn.Module):
    """A differential equation that is solved by Runge-Kutta steps."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Sequential(nn.Linear(WIDTH + 1, 256), nn.Softplus(), nn.Linear(256, WIDTH))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        def slope(time: float, state: torch.Tensor) -> torch.Tensor:
            return self.slope(torch.cat([state, torch.full_like(state[:, :1], time)], 1))

        for step in range(8):
            first = slope(step / 8, x)
            second = slope(step / 8 + 1 / 16, x + first / 16)
            third = slope(step / 8 + 1 / 16, x + second / 16)
            x = x + (first + 2 * second + 2 * third + slope(step / 8 + 1 / 8, x + third / 8)) / 48
        return F.mse_loss(x, y)


class Contrast(nn.Module):
    """Two views of an image, each against all the others of the batch."""

    def __init__(self) -> None:
        super().__init__()
        blocks: Iterable[nn.Module] = (
            layer
            for inner, outer in ((3, 32), (32, 64), (64, 128))
            for layer in (nn.Conv2d(inner, outer, 3, 2, 1), nn.BatchNorm2d(outer), nn.ReLU(inplace=True))
        )
        self.body = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, WIDTH))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        views = torch.cat([pixels, pixels.flip(-1)])
        found = F.normalize(self.body(views), dim=1)
        scores = (found @ found.mT / 0.1).masked_fill(torch.eye(len(found), dtype=torch.bool), -1e9)
        return F.cross_entropy(scores, torch.arange(len(found)).roll(len(pixels)))


class Siglip(nn.Module):
    """Texts and images, each against all the others of the batch, by a sigmoid."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.model = library("SiglipModel", config)

    def forward(self, input_ids: torch.Tensor, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, pixel_values=pixel_values, return_loss=True).loss


def _make_image_body(width: int) -> nn.Module:
    """Return four layers that shrink an image to an eighth of its length."""
    widths = [3, 16, 32, 64, width]
    layers = [
        layer
        for place, (inner, outer) in enumerate(itertools.pairwise(widths))
        for layer in (nn.Conv2d(inner, outer, 3, 2 if place < 3 else 1, 1), nn.BatchNorm2d(outer), nn.ReLU())
    ]
    return nn.Sequential(*layers)


class SetPrediction(nn.Module):
    """Queries that are matched with the boxes of each image, of which it has a list (DETR, with a greedy matcher)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = _make_image_body(WIDTH)
        self.transformer = nn.Transformer(WIDTH, 4, 1, 2, 128, dropout=0.0, batch_first=True)
        self.queries = nn.Parameter(torch.randn(10, WIDTH))
        self.classes, self.places = nn.Linear(WIDTH, CLASSES + 1), nn.Linear(WIDTH, 4)

    def forward(self, pixel_values: torch.Tensor, labels: list[dict[str, torch.Tensor]]) -> torch.Tensor:
        features = self.body(pixel_values).flatten(2).mT
        output = self.transformer(features, self.queries.expand(len(features), -1, -1))
        logits, places = self.classes(output), self.places(output).sigmoid()
        wanted = torch.full(logits.shape[:2], CLASSES)
        distance = 0.0
        for number, label in enumerate(labels):
            cost = torch.cdist(places[number], label["boxes"], 1) - logits[number].softmax(-1)[:, label["class_labels"]]
            chosen = cost.argmin(0).tolist()
            wanted[number, chosen] = label["class_labels"]
            distance = distance + (places[number, chosen] - label["boxes"]).abs().sum()
        return F.cross_entropy(logits.flatten(0, 1), wanted.flatten()) + distance / len(labels)


class HeatMap(nn.Module):
    """Detection in one stage: a map of each class with the centers of boxes, and their sizes (CenterNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.up = _make_image_body(128), nn.ConvTranspose2d(128, WIDTH, 4, 2, 1)
        self.map, self.sizes = nn.Conv2d(WIDTH, CLASSES, 1), nn.Conv2d(WIDTH, 2, 1)

    def forward(self, pixels: Any, classes: Any, centers: Any, sizes: Any) -> torch.Tensor:
        features = F.relu(self.up(self.body(pixels)))
        found, wanted = self.map(features).flatten(2), torch.zeros(len(pixels), CLASSES, 256)
        wanted[torch.arange(len(pixels))[:, None], classes, centers] = 1.0
        chance = found.sigmoid().clamp(1e-4, 1 - 1e-4)
        right = torch.where(wanted == 1, chance, 1 - chance)
        own = self.sizes(features).flatten(2).gather(2, centers[:, None].expand(-1, 2, -1))
        return -((1 - right).square() * right.log()).sum() / centers.numel() + F.l1_loss(own.mT, sizes)


def decision_loss(output: Any, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return F.mse_loss(output.action_preds, batch["actions"])


def count_graphs(batch: Mapping[str, torch.Tensor]) -> int:
    return len(batch["labels"])
