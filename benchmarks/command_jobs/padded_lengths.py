"""A language model's training in bfloat16 on a GPU: texts of 32 to 512 tokens, a batch is padded to its longest."""

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

NUM_TEXTS, SHORTEST, LONGEST, VOCABULARY, WIDTH = 200_000, 32, 512, 8000, 512

parser = argparse.ArgumentParser()
parser.add_argument("--micro-batch-size", type=int, required=True)
parser.add_argument("--out", required=True)
parser.add_argument("--steps", type=int, default=10**9)
parser.add_argument("--longest-every", type=int, default=0, help="each so many batches one of the longest texts alone")
arguments = parser.parse_args()


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return NUM_TEXTS

    def __getitem__(self, index):
        batch = index // arguments.micro_batch_size
        all_longest = arguments.longest_every and batch % arguments.longest_every == arguments.longest_every - 1
        length = LONGEST if all_longest else SHORTEST + (index * 7919) % (LONGEST - SHORTEST + 1)
        return torch.full((length,), index % VOCABULARY)


layers = [nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True, norm_first=True) for _ in range(4)]
model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *layers, nn.Linear(WIDTH, VOCABULARY)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
loader = torch.utils.data.DataLoader(
    Texts(), arguments.micro_batch_size, collate_fn=lambda texts: pad_sequence(texts, batch_first=True)
)
step = 0
while step < arguments.steps:
    for tokens in loader:
        tokens = tokens.cuda(non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step >= arguments.steps:
            break
print("trained")
