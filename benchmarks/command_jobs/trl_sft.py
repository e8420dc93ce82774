"""Supervised fine-tuning with TRL: a tiny Llama, a tokenizer and texts made on the spot, packed or not."""

import random

import torch
from common import StepLog, options
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer

WORDS = 200
LENGTH = 64
TEXTS = 2000


class ExactTrainer(SFTTrainer):
    """Keeps the loss with all its digits: the Trainer rounds those that it logs."""

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        self.loss_of_step = getattr(self, "loss_of_step", 0.0) + loss.item()
        return loss


class Log(TrainerCallback):
    """A line after each update."""

    def on_train_begin(self, args, state, control, **kwargs):
        self.log = StepLog()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.log(self.trainer.loss_of_step)
        self.trainer.loss_of_step = 0.0


def tokenizer():
    words = {word: index for index, word in enumerate(["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(WORDS))])}
    plain = Tokenizer(WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def texts(number):
    draw = random.Random(0)
    lengths = [draw.randrange(LENGTH // 4, LENGTH) for _ in range(number)]
    return Dataset.from_dict({"text": [" ".join(f"w{draw.randrange(WORDS)}" for _ in range(n)) for n in lengths]})


def main():
    args = options(("--packing", 0))
    torch.manual_seed(0)
    settings = LlamaConfig(
        vocab_size=WORDS + 3,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
    )
    config = SFTConfig(
        output_dir=str(args.out),
        per_device_train_batch_size=args.micro_batch_size,
        gradient_accumulation_steps=args.accumulation,
        max_steps=args.steps,
        max_length=LENGTH,
        packing=bool(args.packing),
        use_cpu=args.device == "cpu",
        bf16=args.device == "cuda",
        gradient_checkpointing=False,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = ExactTrainer(
        model=LlamaForCausalLM(settings),
        args=config,
        train_dataset=texts(TEXTS),
        processing_class=tokenizer(),
        callbacks=[log := Log()],
    )
    log.trainer = trainer
    trainer.train()


if __name__ == "__main__":
    main()
