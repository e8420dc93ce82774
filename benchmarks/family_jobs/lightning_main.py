"""A program of the Lightning CLI: a small classifier over random rows."""

import lightning
import torch
from lightning.pytorch.cli import LightningCLI
from torch.nn.functional import cross_entropy

CLASSES, ROWS = 16, 200_000


class Rows(torch.utils.data.Dataset):
    """Random rows with a class each; row i is the same in every process."""

    def __init__(self, width):
        self.width = width

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return torch.randn(self.width, generator=torch.Generator().manual_seed(index)), index % CLASSES


class Model(lightning.LightningModule):
    """Linear layers, each with its activation."""

    def __init__(self, width: int = 512):
        super().__init__()
        layers = [layer for _ in range(4) for layer in (torch.nn.Linear(width, width), torch.nn.GELU())]
        self.layers = torch.nn.Sequential(*layers, torch.nn.Linear(width, CLASSES))

    def training_step(self, batch, index):
        rows, classes = batch
        return cross_entropy(self.layers(rows), classes)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Data(lightning.LightningDataModule):
    """Batches of rows."""

    def __init__(self, batch_size: int = 8, width: int = 512):
        super().__init__()
        self.batch_size, self.width = batch_size, width

    def train_dataloader(self):
        return torch.utils.data.DataLoader(Rows(self.width), batch_size=self.batch_size)


if __name__ == "__main__":
    LightningCLI()
