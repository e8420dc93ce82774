"""The tokens without padding that batches of usual programs show to the observer of a training command."""

from __future__ import annotations

from collections import UserDict

import pytest
import torch

from bexplore.command.observer.bexplore_observer.batches import UNKNOWN, count_tokens, find_tensors

PADDED, LENGTHS = torch.zeros(3, 7, dtype=torch.long), torch.tensor([7, 2, 5])
MASK = (torch.arange(7) < LENGTHS[:, None]).long()
FEATURES = torch.arange(3 * 7 * 2.0).reshape(3, 7, 2)
FEATURES_OF_LENGTHS = torch.where(MASK[..., None] > 0, FEATURES, torch.tensor([-0.5, 0.25]))
IMAGES, LABELS = torch.zeros(4, 3, 8, 8), torch.tensor([8, 3, 9, 1])

BATCHES = {
    "a mask": ({"input_ids": PADDED, "attention_mask": MASK}, 14),
    "a mask of booleans in what a tokenizer returns": (UserDict(input_ids=PADDED, attention_mask=MASK.bool()), 14),
    "masks of an encoder and a decoder": ({"attention_mask": MASK, "decoder_attention_mask": MASK[:, :2]}, 14 + 6),
    "lengths beside padded rows": ((PADDED, LENGTHS), 14),
    "lengths beside steps of time first": ((torch.zeros(7, 3, 80), LENGTHS.int()), 14),
    "lengths beside features padded with a value of each": ((FEATURES_OF_LENGTHS, LENGTHS), 14),
    "lengths of one sample": ((FEATURES[:1], torch.tensor([7])), 7),
    "classes that the number of features happens to be the last of": ((FEATURES, LENGTHS), UNKNOWN),
    "images and their channels": ((IMAGES, torch.tensor([3, 3, 3, 3])), UNKNOWN),
    "rows alone": (PADDED, UNKNOWN),
    "images and their classes": ((IMAGES, LABELS), UNKNOWN),
    "targets of a regression": ((PADDED, LENGTHS.float()), UNKNOWN),
    "a sample without tokens": ((PADDED, torch.tensor([7, 0, 5])), UNKNOWN),
    "no tensor": ({"text": ["a", "b"]}, UNKNOWN),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_shows_its_tokens_by_masks_or_lengths(name):
    batch, num_tokens = BATCHES[name]

    assert count_tokens(batch, find_tensors(batch, torch.Tensor)) == num_tokens
