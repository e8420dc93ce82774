"""DINOv2: a student follows its frozen teacher over crops of an image and over masked patches.

Sources: DINO (arXiv 2104.14294), iBOT (arXiv 2111.07832), DINOv2 (arXiv 2304.07193). The teacher's moving average and
the centering of its outputs are left out: one pass over the weights, and over a vector, for each update.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from bexplore.errors import check_keys
from bexplore.job import Job
from bexplore.workloads.hf import build_model
from bexplore.workloads.samples import random_values
from bexplore.workloads.workload import Workload, assemble

_STUDENT_TEMPERATURE, _TEACHER_TEMPERATURE = 0.1, 0.07  # source: DINO, section 3.1 and appendix


def build_self_distillation(job: Job) -> Workload:
    """Build `{"dinov2", "head", "has_patch_head"}` of `job.model`: settings of `Dinov2Config`, and of the heads.

    `job.data` holds `num_global`, `num_local` (crops), `global_size`, `local_size` (pixels) and `masked_share`.

    Raises:
        UserInputError: transformers is missing, or refuses the settings.
    """
    check_keys(job.model, ("dinov2", "head", "has_patch_head"), "Self-distillation")
    data, device = job.data, torch.device(job.device)
    trunks = [build_model(job, "AutoModel", "dinov2", job.model["dinov2"]) for _ in range(2)]
    with device:
        loss_module = SelfDistillationLoss(trunks, job.model["head"], has_patch_head=job.model["has_patch_head"])
    config = trunks[0].config
    num_patches = (data["global_size"] // config.patch_size) ** 2
    masked = torch.arange(max(1, round(data["masked_share"] * num_patches)))
    shapes = [
        (data[f"num_{kind}"], config.num_channels, data[f"{kind}_size"], data[f"{kind}_size"])
        for kind in ("global", "local")
    ]

    def make_batch(micro_batch_size: int) -> tuple[torch.Tensor, ...]:
        dtype = next(trunks[0].parameters()).dtype
        crops = [random_values(micro_batch_size, shape, seed=job.seed).to(device, dtype) for shape in shapes]
        return (*crops, masked.expand(micro_batch_size, data["num_global"], -1).contiguous().to(device))

    return assemble(job, loss_module, make_batch, batch_dimensions=[0, 0, 0])


class SelfDistillationLoss(nn.Module):
    """Cross entropy of the student's crops and masked patches with those of the teacher."""

    def __init__(self, trunks: list[Any], head: Mapping[str, int], *, has_patch_head: bool) -> None:
        super().__init__()
        width = trunks[0].config.hidden_size
        self.student, self.teacher = trunks
        self.heads = nn.ModuleList(_Head(width, **head) for _ in range(2))  # student, teacher
        self.patch_heads = nn.ModuleList(_Head(width, **head) for _ in range(2)) if has_patch_head else self.heads
        for frozen in (self.teacher, self.heads[1], self.patch_heads[1]):
            frozen.requires_grad_(False)

    def forward(self, large: torch.Tensor, small: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
        """Return the sum of both losses.

        Args:
            large: (samples, global crops, channels, height, width).
            small: (samples, local crops, channels, height, width).
            masked: (samples, global crops, masked patches) int64, positions of patches.

        Returns:
            Scalar float32.
        """
        crops, rows = large.flatten(0, 1), masked.flatten(0, 1)
        with torch.no_grad():
            seen = self.teacher(crops).last_hidden_state
            aims = _targets(self.heads[1](seen[:, 0])), _targets(self.patch_heads[1](_picked(seen, rows)))
        is_masked = torch.zeros(rows.size(0), seen.size(1) - 1, dtype=torch.bool, device=rows.device)
        own = self.student(crops, bool_masked_pos=is_masked.scatter(1, rows, True)).last_hidden_state
        own_small = self.student(small.flatten(0, 1)).last_hidden_state[:, 0]
        of_crops = torch.cat((_rows_of(self.heads[0](own[:, 0]), large), _rows_of(self.heads[0](own_small), small)), 1)
        of_patches = self.patch_heads[0](_picked(own, rows))
        return _crop_loss(of_crops, _rows_of(aims[0], large)) + _cross_entropy(of_patches, aims[1]).mean()


class _Head(nn.Module):
    """A network down to a normalized bottleneck, and prototypes of unit length."""

    def __init__(self, width: int, hidden_size: int, bottleneck_size: int, output_size: int, num_layers: int) -> None:
        super().__init__()
        widths = [width, *[hidden_size] * (num_layers - 1), bottleneck_size]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(widths))
        self.prototypes = nn.Parameter(torch.randn(output_size, bottleneck_size) * 0.02)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map (..., width) to (..., output_size) logits."""
        for index, layer in enumerate(self.layers):
            hidden = layer(F.gelu(hidden) if index else hidden)
        return F.linear(F.normalize(hidden, dim=-1), F.normalize(self.prototypes, dim=-1))


def _targets(logits: torch.Tensor) -> torch.Tensor:
    return F.softmax(logits.float() / _TEACHER_TEMPERATURE, dim=-1)


def _picked(hidden: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return the hidden states of patches; the class token stands before them."""
    return hidden.gather(1, (positions + 1).unsqueeze(2).expand(-1, -1, hidden.size(2)))


def _rows_of(values: torch.Tensor, crops: torch.Tensor) -> torch.Tensor:
    """Return values of all crops by sample and crop."""
    return values.view(-1, crops.size(1), values.size(-1))


def _cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return -(targets * F.log_softmax(logits.float() / _STUDENT_TEMPERATURE, dim=-1)).sum(dim=-1)


def _crop_loss(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Return the mean over pairs of different crops of (samples, crops, outputs) and the teacher's."""
    losses = [
        _cross_entropy(student[:, own], teacher[:, other]).mean()
        for other in range(teacher.size(1))
        for own in range(student.size(1))
        if own != other
    ]
    return torch.stack(losses).mean()
