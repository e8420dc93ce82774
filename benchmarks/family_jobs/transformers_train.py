"""A script of `TrainingArguments`: `python transformers_train.py ARGUMENTS.json`."""

import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

TOKENS, TEXTS = 64, 100_000


class Texts(torch.utils.data.Dataset):
    """Random tokens; text i is the same in every process."""

    def __len__(self):
        return TEXTS

    def __getitem__(self, index):
        tokens = torch.randint(4, 200, (TOKENS,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def main():
    (arguments,) = HfArgumentParser(TrainingArguments).parse_json_file(str(Path(sys.argv[1]).resolve()))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("./model"))
    Trainer(model=model, args=arguments, train_dataset=Texts()).train()


if __name__ == "__main__":
    main()
