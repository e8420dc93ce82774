"""Random tokens as a LitGPT data module, named in litgpt.yaml."""

import torch
from litgpt.data import DataModule

VOCABULARY = 256


class Tokens(torch.utils.data.Dataset):
    """Texts of one token more than the model reads."""

    def __init__(self, length, tokens):
        self.length, self.tokens = length, tokens

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.randint(VOCABULARY, (self.tokens + 1,), generator=torch.Generator().manual_seed(index))


class RandomTokens(DataModule):
    """The same texts for the training and the validation."""

    def __init__(self, length: int = 1_000_000):
        super().__init__()
        self.length = length

    def connect(self, tokenizer=None, batch_size=1, max_seq_length=128, **kwargs):
        self.batch_size, self.tokens = batch_size, max_seq_length

    def train_dataloader(self):
        return torch.utils.data.DataLoader(Tokens(self.length, self.tokens), batch_size=self.batch_size)

    def val_dataloader(self):
        return torch.utils.data.DataLoader(Tokens(self.batch_size, self.tokens), batch_size=self.batch_size)
