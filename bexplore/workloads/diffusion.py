"""DiT: a transformer that removes noise from latents, given the time and the class.

Sources: Scalable Diffusion Models with Transformers (arXiv 2212.09748), adaLN-Zero; DDPM (arXiv 2006.11239), the loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from bexplore.errors import check_keys, require
from bexplore.job import Job
from bexplore.workloads.samples import random_tokens, random_values
from bexplore.workloads.workload import Workload, assemble

_LONGEST_PERIOD = 10_000.0  # of the sinusoids of time; source: DDPM's code, as DiT has it
_FIRST_VARIANCE, _LAST_VARIANCE = 1e-4, 0.02  # of the linear schedule; source: DDPM, section 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffusionConfig:
    """Sizes of a DiT; the defaults are those of DiT-S/2 over latents of images of 256 pixels."""

    hidden_size: int = 384
    num_layers: int = 12
    num_heads: int = 6
    intermediate_size: int = 1536
    patch_size: int = 2
    latent_size: int = 32
    latent_channels: int = 4
    frequency_size: int = 256
    num_classes: int = 1000
    num_steps: int = 1000
    dropout: float = 0.0
    norm_eps: float = 1e-6
    activation: str = "gelu"
    learns_variance: bool = False


def build_diffusion(job: Job) -> Workload:
    """Build the DiT whose sizes are the fields of `DiffusionConfig` in `job.model`.

    Raises:
        UserInputError: A setting is unknown, or the heads do not divide the width.
    """
    check_keys(job.model, [field.name for field in fields(DiffusionConfig)], "DiT")
    config = DiffusionConfig(**job.model)
    require(
        config.hidden_size % config.num_heads == 0,
        f"hidden_size {config.hidden_size} is not a multiple of num_heads {config.num_heads}.",
        "Change one of the two.",
    )
    device = torch.device(job.device)
    with device:
        loss_module = DiffusionLoss(config)
    shape = (config.latent_channels, config.latent_size, config.latent_size)

    def make_batch(micro_batch_size: int) -> tuple[torch.Tensor, ...]:
        dtype = next(loss_module.parameters()).dtype
        latents, noise = (random_values(micro_batch_size, shape, seed=job.seed + part) for part in range(2))
        times = random_tokens(micro_batch_size, 1, config.num_steps, seed=job.seed).squeeze(1)
        labels = random_tokens(micro_batch_size, 1, config.num_classes, seed=job.seed + 1).squeeze(1)
        return latents.to(device, dtype), noise.to(device, dtype), times.to(device), labels.to(device)

    return assemble(job, loss_module, make_batch, batch_dimensions=[0, 0, 0, 0])


class DiffusionLoss(nn.Module):
    """Mean squared error of the noise that a DiT predicts."""

    kept: torch.Tensor  # (steps,) float32, the share of the latents' variance that is left

    def __init__(self, config: DiffusionConfig) -> None:
        super().__init__()
        self.model = DiffusionTransformer(config)
        kept = torch.cumprod(1 - torch.linspace(_FIRST_VARIANCE, _LAST_VARIANCE, config.num_steps), 0)
        self.register_buffer("kept", kept)

    def forward(
        self, latents: torch.Tensor, noise: torch.Tensor, times: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        """Return the mean loss.

        Args:
            latents: (samples, channels, height, width).
            noise: Like `latents`.
            times: (samples,) int64, steps of diffusion.
            labels: (samples,) int64, classes.

        Returns:
            Scalar float32.
        """
        kept = self.kept[times].view(-1, 1, 1, 1)
        noisy = (kept.sqrt() * latents + (1 - kept).sqrt() * noise).to(latents.dtype)
        predicted = self.model(noisy, times, labels)[:, : noise.size(1)]
        return F.mse_loss(predicted.float(), noise.float())


class DiffusionTransformer(nn.Module):
    """Noisy latents, times and classes to predicted noise."""

    def __init__(self, config: DiffusionConfig) -> None:
        super().__init__()
        width, patch = config.hidden_size, config.patch_size
        self.frequency_size = config.frequency_size
        self.side = config.latent_size // patch
        self.patches = nn.Conv2d(config.latent_channels, width, patch, stride=patch)
        self.positions = nn.Parameter(torch.zeros(1, self.side**2, width), requires_grad=False)
        self.time = nn.Sequential(nn.Linear(config.frequency_size, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(config.num_classes + 1, width)  # and that of a dropped class
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(width, eps=config.norm_eps, elementwise_affine=False)
        self.condition = nn.Linear(width, 2 * width)
        channels = config.latent_channels * (2 if config.learns_variance else 1)
        self.output = nn.ConvTranspose2d(width, channels, patch, stride=patch)

    def forward(self, latents: torch.Tensor, times: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Map (samples, channels, height, width) to the predicted noise, and the variance where it is learned."""
        hidden = self.patches(latents).flatten(2).transpose(1, 2) + self.positions
        condition = F.silu(self.time(self._frequencies(times).to(latents.dtype)) + self.label(labels))
        for block in self.blocks:
            hidden = block(hidden, condition)
        shift, scale = self.condition(condition).unsqueeze(1).chunk(2, dim=2)
        hidden = self.norm(hidden) * (1 + scale) + shift
        return self.output(hidden.transpose(1, 2).unflatten(2, (self.side, self.side)))

    def _frequencies(self, times: torch.Tensor) -> torch.Tensor:
        half = self.frequency_size // 2
        steps = torch.arange(half, device=times.device) / half
        angles = times.unsqueeze(1) * torch.exp(-math.log(_LONGEST_PERIOD) * steps)
        return torch.cat((angles.cos(), angles.sin()), dim=1)


class _Block(nn.Module):
    """Attention and feed-forward, each scaled, shifted and gated by the condition (adaLN-Zero)."""

    def __init__(self, config: DiffusionConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.num_heads, self.dropout = config.num_heads, config.dropout
        self.approximate = "tanh" if config.activation == "gelu_tanh" else "none"
        self.norms = nn.ModuleList(nn.LayerNorm(width, config.norm_eps, elementwise_affine=False) for _ in range(2))
        self.condition = nn.Linear(width, 6 * width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.mixed = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, config.intermediate_size), nn.Linear(config.intermediate_size, width)

    def forward(self, hidden: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        """Map (samples, patches, width) to the same shape."""
        parts = self.condition(condition).unsqueeze(1).chunk(6, dim=2)
        hidden = hidden + parts[2] * self._attention(self.norms[0](hidden) * (1 + parts[1]) + parts[0])
        wide = F.gelu(self.up(self.norms[1](hidden) * (1 + parts[4]) + parts[3]), approximate=self.approximate)
        return hidden + parts[5] * F.dropout(self.down(wide), self.dropout, self.training)

    def _attention(self, hidden: torch.Tensor) -> Any:
        heads = self.query_key_value(hidden).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2])
        return F.dropout(self.mixed(mixed.transpose(1, 2).flatten(2)), self.dropout, self.training)
