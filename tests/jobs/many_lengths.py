"""A training whose samples have many lengths, short ones first; a token costs a fixed time of sleep.

`--tells` names how a batch shows its tokens: by a mask, by lengths, or not at all. A batch is read ahead of its pass.
"""

import argparse
import time

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

TOKEN_S = 0.0004
LENGTHS = [10] * 64 + [50] * 4032

parser = argparse.ArgumentParser()
parser.add_argument("--micro-batch-size", type=int)
parser.add_argument("--out")
parser.add_argument("--tells", default="mask")
OPTIONS = parser.parse_args()


def collate(samples):
    lengths = torch.tensor([len(one) for one in samples])
    tokens = pad_sequence(samples, batch_first=True)
    if OPTIONS.tells == "mask":
        return {"input_ids": tokens, "attention_mask": (torch.arange(tokens.shape[1]) < lengths[:, None]).long()}
    return {"input_ids": tokens, "sizes": lengths} if OPTIONS.tells == "lengths" else {"input_ids": tokens}


def read_ahead(loader):
    kept = None
    for batch in loader:
        if kept is not None:
            yield kept
        kept = batch


model = torch.nn.Embedding(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = [torch.ones(length, dtype=torch.long) for length in LENGTHS]
for batch in read_ahead(DataLoader(data, batch_size=OPTIONS.micro_batch_size, collate_fn=collate)):
    loss = model(batch["input_ids"]).square().mean()
    time.sleep(TOKEN_S * batch["input_ids"].numel())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
