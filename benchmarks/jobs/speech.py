"""A small encoder of speech whose batches take the number of frames: own code with samples of many lengths."""

from __future__ import annotations

import torch
from torch import nn

_WIDTH, _FEATURES, _CLASSES = 144, 40, 64


class SpeechEncoder(nn.Module):
    """Classes of frames from filter banks, with convolutions before attention."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Conv1d(_FEATURES, _WIDTH, 5, padding=2)
        layer = nn.TransformerEncoderLayer(_WIDTH, 4, 576, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classes = nn.Linear(_WIDTH, _CLASSES)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Map (samples, frames, features) to (samples, frames, classes)."""
        hidden = torch.relu(self.front(features.transpose(1, 2))).transpose(1, 2)
        return self.classes(self.encoder(hidden))


def build() -> SpeechEncoder:
    """Return the model."""
    return SpeechEncoder()


def make_batch(micro_batch_size: int, num_frames: int = 350) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features and the classes of their frames."""
    features = torch.randn(micro_batch_size, num_frames, _FEATURES)
    return features, torch.randint(_CLASSES, (micro_batch_size, num_frames))
