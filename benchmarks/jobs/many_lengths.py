"""Small models whose samples have many lengths, some with a part of a fixed size beside."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, WIDTH, PIXELS, QUERIES = 200, 32, 48, 48


class Attention(nn.Module):
    """Attention over a sequence; a matrix of all pairs is kept where it is not fused."""

    def __init__(self, is_fused: bool) -> None:
        super().__init__()
        self.inputs, self.output, self.is_fused = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), is_fused

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.inputs(x).chunk(3, dim=-1)
        if self.is_fused:
            heads = [one.unflatten(-1, (2, -1)).transpose(1, 2) for one in (query, key, value)]
            found = F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(-2)
        else:
            found = (query @ key.transpose(1, 2)).div(WIDTH**0.5).softmax(-1) @ value
        return x + self.output(found)


class Text(nn.Module):
    """A language model, with what a picture of the sample adds to each token, if it is given one."""

    def __init__(self, is_fused: bool = True, has_pictures: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.attention = Attention(is_fused)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.picture = None
        if has_pictures:
            layers = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, WIDTH, 3, padding=1), nn.ReLU()]
            self.picture = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, text: torch.Tensor, pictures: torch.Tensor | None = None) -> torch.Tensor:
        x = self.attention(self.words(text))
        if self.picture is not None and pictures is not None:
            x = x + self.picture(pictures)[:, None]
        return self.head(x + self.mlp(x))


class Queries(nn.Module):
    """An encoder of text, and a decoder of a fixed number of queries that look at it."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.encoder = nn.Embedding(VOCABULARY, WIDTH), Attention(is_fused=True)
        self.queries, self.decoder = nn.Parameter(torch.randn(QUERIES, WIDTH)), Attention(is_fused=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        encoded = self.encoder(self.words(text))
        queries = self.queries.expand(len(text), -1, -1)
        seen = F.scaled_dot_product_attention(queries, encoded, encoded)
        return self.head(self.decoder(queries + seen))


def text() -> nn.Module:
    return Text()


def pairs() -> nn.Module:
    return Text(is_fused=False)


def captions() -> nn.Module:
    return Text(has_pictures=True)


def captions_pairs() -> nn.Module:
    return Text(is_fused=False, has_pictures=True)


def queries() -> nn.Module:
    return Queries()


def texts(micro_batch_size: int, sequence_length: int) -> tuple:
    words = torch.randint(VOCABULARY, (micro_batch_size, sequence_length))
    return words, words


def pictures(micro_batch_size: int, sequence_length: int) -> tuple:
    words = torch.randint(VOCABULARY, (micro_batch_size, sequence_length))
    return (words, torch.randn(micro_batch_size, 3, PIXELS, PIXELS)), words


def answers(micro_batch_size: int, sequence_length: int) -> tuple:
    words = torch.randint(VOCABULARY, (micro_batch_size, sequence_length))
    return words, torch.randint(VOCABULARY, (micro_batch_size, QUERIES))


def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), labels.flatten())
