"""Two BERT encoders of questions and passages, trained by the passages of the other samples.

Source: Dense Passage Retrieval (arXiv 2004.04906): a question, its passage and one hard negative a sample.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from bexplore.errors import check_keys, positive_int
from bexplore.job import Job
from bexplore.workloads.hf import build_model
from bexplore.workloads.samples import random_tokens
from bexplore.workloads.workload import Workload, assemble

_PASSAGES = 2  # of a sample: the right one and a hard negative


def build_dual_encoder(job: Job) -> Workload:
    """Build `{"question", "context"}` of `job.model`, settings of `BertConfig`; without `context` there is one encoder.

    Raises:
        UserInputError: transformers is missing, or refuses the settings.
    """
    check_keys(job.model, ("question", "context"), "A dual encoder")
    length = positive_int(job.data.get("sequence_length"), "sequence_length")
    encoders = {name: build_model(job, "AutoModel", "bert", config) for name, config in job.model.items()}
    loss_module = DualEncoderLoss(encoders["question"], encoders.get("context"))
    vocab_size = encoders["question"].config.vocab_size
    device = torch.device(job.device)

    def make_batch(micro_batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = random_tokens(micro_batch_size, (1 + _PASSAGES) * length, vocab_size, seed=job.seed)
        question, passages = tokens.split((length, _PASSAGES * length), dim=1)
        return question.contiguous().to(device), passages.unflatten(1, (_PASSAGES, length)).contiguous().to(device)

    return assemble(job, loss_module, make_batch, batch_dimensions=[0, 0])


class DualEncoderLoss(nn.Module):
    """Cross entropy of each question over the passages of the whole micro-batch."""

    def __init__(self, question: Any, context: Any) -> None:
        super().__init__()
        self.question = question
        self.context = context

    def forward(self, questions: torch.Tensor, passages: torch.Tensor) -> torch.Tensor:
        """Return the mean loss.

        Args:
            questions: (samples, tokens) int64.
            passages: (samples, passages, tokens) int64; the right one is the first.

        Returns:
            Scalar float32.
        """
        encoder = self.question if self.context is None else self.context
        asked = self.question(input_ids=questions).pooler_output
        found = encoder(input_ids=passages.flatten(0, 1)).pooler_output
        right = torch.arange(questions.size(0), device=questions.device) * _PASSAGES
        return F.cross_entropy((asked @ found.T).float(), right)
