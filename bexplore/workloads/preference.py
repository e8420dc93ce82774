"""Preference training of the built-in decoder (DPO): a policy, a frozen reference, and pairs of answers.

Source: Direct Preference Optimization (arXiv 2305.18290), equation 7.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from bexplore.errors import check_keys
from bexplore.job import Job
from bexplore.workloads.decoder import DecoderLoss
from bexplore.workloads.decoder_config import DecoderConfig
from bexplore.workloads.samples import random_tokens
from bexplore.workloads.workload import Workload, assemble


def build_preference(job: Job) -> Workload:
    """Build `{"decoder", "beta", "reference_free"}` of `job.model`; a sample is a chosen and a rejected answer.

    Raises:
        UserInputError: The decoder's settings are wrong.
    """
    check_keys(job.model, ("decoder", "beta", "reference_free"), "Preference training")
    config = DecoderConfig.from_mapping(job.model["decoder"])
    length = job.sequence_length or config.max_position_embeddings
    device = torch.device(job.device)
    with device:
        loss_module = PreferenceLoss(config, job.model["beta"], has_reference=not job.model["reference_free"])

    def make_batch(micro_batch_size: int) -> tuple[torch.Tensor]:
        tokens = random_tokens(micro_batch_size, 2 * (length + 1), config.vocab_size, seed=job.seed)
        return (tokens.unflatten(1, (2, length + 1)).to(device),)

    return assemble(job, loss_module, make_batch, batch_dimensions=[0])


class PreferenceLoss(nn.Module):
    """The loss of pairs of answers by their log probabilities under a policy and a reference."""

    def __init__(self, config: DecoderConfig, beta: float, *, has_reference: bool) -> None:
        super().__init__()
        self.beta = beta
        self.policy = DecoderLoss(config)
        self.policy.init_weights()
        self.reference = DecoderLoss(config) if has_reference else None
        if self.reference is not None:
            self.reference.init_weights()
            self.reference.requires_grad_(False)

    def forward(self, answers: torch.Tensor) -> torch.Tensor:
        """Return the mean loss.

        Args:
            answers: (samples, 2, tokens + 1) int64; the chosen answer, then the rejected one.

        Returns:
            Scalar float32.
        """
        margin = _margin(self.policy, answers)
        if self.reference is not None:
            with torch.no_grad():
                expected = _margin(self.reference, answers)
            margin = margin - expected
        return -F.logsigmoid(self.beta * margin).mean()


def _margin(model: DecoderLoss, answers: torch.Tensor) -> torch.Tensor:
    """Return the log probability of the chosen answer over that of the rejected one, (samples,)."""
    rows = answers.flatten(0, 1)
    logits, targets = model.decoder(rows[:, :-1].contiguous()), rows[:, 1:].contiguous()
    losses = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    log_probability = -losses.view(-1, 2, targets.size(1)).sum(dim=2)
    return log_probability[:, 0] - log_probability[:, 1]
