"""A training by Lightning with `MicroBatchSizeFinder`; run as a program with its folder."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger

from bexplore.lightning import MicroBatchSizeFinder

FOLDER = Path(sys.argv[1])


class Data(LightningDataModule):
    def __init__(self) -> None:
        super().__init__()
        self.batch_size = 1

    def train_dataloader(self) -> torch.utils.data.DataLoader:
        return torch.utils.data.DataLoader(torch.randn(512, 8), batch_size=self.batch_size)


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: torch.Tensor, batch_index: int) -> torch.Tensor:
        loss = self.layer(batch).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


if __name__ == "__main__":
    finder = MicroBatchSizeFinder(
        global_batch_size=16, candidates=[4, 8], max_probes=3, model_dir=str(FOLDER / "model_dir")
    )
    trainer = Trainer(
        max_steps=3,
        max_time="00:02:00:00",
        accelerator="cpu",
        devices=1,
        callbacks=[finder],
        logger=CSVLogger(FOLDER, name="logs"),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = Data()
    trainer.fit(Model(), datamodule=data)
    print("trained with", data.batch_size, trainer.accumulate_grad_batches, finder.result is not None)
