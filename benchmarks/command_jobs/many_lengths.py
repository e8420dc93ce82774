"""A training whose samples have the lengths of a file: a batch is padded to its longest, sorted within many or not.

`--check` prints a JSON line at the end: seconds of the steps, tokens without padding, and the peak of the process.
"""

import argparse
import json
import resource
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

VOCABULARY, WIDTH, WINDOW = 2000, 128, 50  # batches within which samples are sorted
MIB = 1024  # KiB

parser = argparse.ArgumentParser()
parser.add_argument("--micro-batch-size", type=int, required=True)
parser.add_argument("--out", required=True)
parser.add_argument("--lengths", type=Path, required=True)
parser.add_argument("--samples", type=int, default=10**9)
parser.add_argument("--steps", type=int, default=10**9)
parser.add_argument("--sorted", action="store_true")
parser.add_argument("--longest-every", type=int, default=0, help="each so many batches has the longest samples alone")
parser.add_argument("--check", action="store_true")
arguments = parser.parse_args()
lengths = [int(line) for line in arguments.lengths.read_text().split()]
size = arguments.micro_batch_size


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return len(lengths)

    def __getitem__(self, index):
        return torch.full((lengths[index],), index % VOCABULARY)


def draw_batches():
    """Yield the numbers of the samples of each batch, for ever."""
    drawn = torch.Generator().manual_seed(0)
    longest = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    number = 0
    while True:
        order = torch.randperm(len(lengths), generator=drawn).tolist()
        if arguments.sorted:
            window = WINDOW * size
            parts = [order[start : start + window] for start in range(0, len(order), window)]
            order = [index for part in parts for index in sorted(part, key=lambda index: lengths[index])]
        batches = [order[start : start + size] for start in range(0, len(order) - size + 1, size)]
        for place in torch.randperm(len(batches), generator=drawn).tolist():
            number += 1
            is_longest = arguments.longest_every and number % arguments.longest_every == 0
            yield longest[:size] if is_longest else batches[place]


def main():
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(WIDTH, 4, 512, 0.0, batch_first=True, norm_first=True) for _ in range(2)]
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *layers, nn.Linear(WIDTH, VOCABULARY))
    optimizer = torch.optim.AdamW(model.parameters())
    batches = torch.utils.data.DataLoader(
        Texts(),
        batch_sampler=draw_batches(),
        collate_fn=lambda texts: (pad_sequence(texts, True), sum(map(len, texts))),
    )
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    steps = samples = tokens = 0
    began = time.perf_counter()
    for texts, num_tokens in batches:
        cross_entropy(model(texts).flatten(0, 1), texts.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        steps, samples, tokens = steps + 1, samples + len(texts), tokens + num_tokens
        if steps >= arguments.steps or samples >= arguments.samples:
            break
    if arguments.check:
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        seconds = time.perf_counter() - began
        found = {"seconds": seconds, "steps": steps, "tokens": tokens}
        print(json.dumps(found | {"peak_mib": peak_kib / MIB, "before_mib": before_kib / MIB}))


if __name__ == "__main__":
    main()
