"""What torchtune.yaml names: a tiny model, random texts, a start without a checkpoint, and a log."""

import torch
from common import StepLog
from torchtune.models.llama3_2 import llama3_2

VOCABULARY = 256


def tiny_model():
    return llama3_2(
        vocab_size=VOCABULARY,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        embed_dim=128,
        max_seq_len=128,
        intermediate_dim=256,
    )


class NoTokenizer:
    """The texts are tokens already."""

    pad_id = 0
    max_seq_len = 128


class RandomTokens(torch.utils.data.Dataset):
    """Texts of random tokens, all of one length."""

    def __init__(self, tokenizer, length: int, tokens: int):
        self.length, self.tokens = length, tokens

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        tokens = torch.randint(1, VOCABULARY, (self.tokens,), generator=torch.Generator().manual_seed(index)).tolist()
        return {"tokens": tokens, "labels": tokens}


class FreshStart:
    """Stands where a checkpointer would: hands out the weights of a new model, and saves the last ones."""

    def __init__(self, output_dir: str, should_load_recipe_state: bool = False):
        self.output_dir = output_dir

    def load_checkpoint(self):
        torch.manual_seed(0)
        return {"model": tiny_model().state_dict()}

    def save_checkpoint(self, state_dict, epoch, intermediate_checkpoint, adapter_only=False):
        torch.save(state_dict["model"], f"{self.output_dir}/model.pt")


class ExactLog:
    """A JSON line a step, with all digits of the loss."""

    def __init__(self):
        self.write = StepLog()

    def log_dict(self, payload, step):
        self.write(payload["loss"])

    def log_config(self, config):
        pass

    def close(self):
        pass
