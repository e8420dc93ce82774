"""A fully connected classifier, such as the one that learns MNIST in tutorials."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import nn

from bexplore.errors import check_keys, positive_int
from bexplore.job import Job
from bexplore.workloads.samples import random_tokens, random_values
from bexplore.workloads.workload import Workload, assemble


def build_perceptron(job: Job) -> Workload:
    """Build `{"input_size", "hidden_sizes", "num_classes", "dropout"}` of `job.model`.

    Raises:
        UserInputError: A setting is unknown, or a size is no positive integer.
    """
    check_keys(job.model, ("input_size", "hidden_sizes", "num_classes", "dropout"), "The fully connected classifier")
    names = ("input_size", *("hidden_sizes" for _ in job.model["hidden_sizes"]), "num_classes")
    sizes = [job.model["input_size"], *job.model["hidden_sizes"], job.model["num_classes"]]
    widths = [positive_int(value, name) for name, value in zip(names, sizes, strict=True)]
    device = torch.device(job.device)
    with device:
        loss_module = ClassifierLoss(widths, job.model.get("dropout", 0.0))

    def make_batch(micro_batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = next(loss_module.parameters()).dtype
        values = random_values(micro_batch_size, (widths[0],), seed=job.seed)
        labels = random_tokens(micro_batch_size, 1, widths[-1], seed=job.seed + 1).squeeze(1)
        return values.to(device, dtype), labels.to(device)

    return assemble(job, loss_module, make_batch, batch_dimensions=[0, 0])


class ClassifierLoss(nn.Module):
    """Cross entropy of linear layers with ReLU and dropout between them."""

    def __init__(self, widths: list[int], dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(widths))
        self.dropout = nn.Dropout(dropout)

    def forward(self, values: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of (samples, inputs) values and (samples,) int64 labels."""
        for layer in self.layers[:-1]:
            values = self.dropout(F.relu(layer(values)))
        return F.cross_entropy(self.layers[-1](values).float(), labels)
