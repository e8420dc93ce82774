"""A tiny BERT as an encoder of sentences, trained by sentence-transformers on pairs of them."""

import random

import torch
from common import StepLog, options
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, TrainerCallback

WORDS = 200
PAIRS = 20_000


class Log(TrainerCallback):
    """A line after each update; the loss is that which the Trainer logs."""

    def on_train_begin(self, args, state, control, **kwargs):
        self.log = StepLog()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.log(0.0)


def save_encoder(folder):
    words = {word: index for index, word in enumerate(["[PAD]", "[UNK]", *(f"w{i}" for i in range(WORDS))])}
    plain = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    plain.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}
    BertModel(BertConfig(vocab_size=len(words), **sizes)).save_pretrained(folder)


def main():
    args = options()
    folder = args.out / "encoder"
    save_encoder(folder)
    model = SentenceTransformer(str(folder), device=args.device)
    draw = random.Random(0)
    texts = [" ".join(f"w{draw.randrange(WORDS)}" for _ in range(24)) for _ in range(2 * PAIRS)]
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(args.out),
        per_device_train_batch_size=args.micro_batch_size,
        gradient_accumulation_steps=args.accumulation,
        max_steps=args.steps,
        use_cpu=args.device == "cpu",
        bf16=args.device == "cuda",
        report_to=[],
        disable_tqdm=True,
    )
    SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict({"anchor": texts[:PAIRS], "positive": texts[PAIRS:]}),
        loss=MultipleNegativesRankingLoss(model),
        callbacks=[Log()],
    ).train()


if __name__ == "__main__":
    main()
