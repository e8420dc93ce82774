"""A loop of accelerate whose batch is DeepSpeed's: `accelerate launch deepspeed_train.py DEEPSPEED.json`."""

import json
import sys
from pathlib import Path

import torch
from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.utils import DummyOptim
from transformers import AutoConfig, AutoModelForCausalLM

TOKENS, TEXTS = 64, 100_000


def main():
    size = json.loads(Path(sys.argv[1]).read_text())["train_micro_batch_size_per_gpu"]
    accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=sys.argv[1]))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("./model"))
    texts = torch.utils.data.TensorDataset(torch.randint(4, 200, (TEXTS, TOKENS)))
    loader = torch.utils.data.DataLoader(texts, batch_size=size, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, DummyOptim(model.parameters()), loader)
    while True:
        for (tokens,) in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(input_ids=tokens, labels=tokens).loss)
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    main()
