"""Models of the commands as jobs by import path: a model, a batch and its loss."""

import torch
from common import CLASSES, MODELS, WIDTH
from torch.nn.functional import cross_entropy


def encoder():
    """The encoder that `gpu_loop.py` trains."""
    return MODELS["encoder"]()


def images():
    """The convolutions that `plain.py` trains."""
    return MODELS["images"]()


def rows(micro_batch_size):
    """Rows with a class each."""
    return torch.randn(micro_batch_size, WIDTH), torch.randint(CLASSES, (micro_batch_size,))


def loss(scores, classes):
    """The loss of both."""
    return cross_entropy(scores.float(), classes)
