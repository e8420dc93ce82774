"""A training by the `Trainer` of transformers behind `bexplore.transformers.explore`; run with its folder."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import bexplore

FOLDER = Path(sys.argv[1])


class Tokens(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(index, index + 8) % 64
        return {"input_ids": tokens, "labels": tokens}


def make_trainer(batch_size: int) -> Trainer:
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=64, n_positions=8))
    arguments = TrainingArguments(
        output_dir=str(FOLDER / "checkpoints"),
        per_device_train_batch_size=batch_size,
        num_train_epochs=1,
        save_steps=1,
        use_cpu=True,
        disable_tqdm=True,
    )
    return Trainer(model=model, args=arguments, train_dataset=Tokens())


if __name__ == "__main__":
    result = bexplore.transformers.explore(
        make_trainer, candidates=[4, 8], max_probes=3, model_dir=str(FOLDER / "model_dir")
    )
    print("found", result.micro_batch_size, *(result.program.optimizers or ()))
