"""A tiny GPT-2, made from a configuration, in the Trainer of transformers; started by python or torchrun."""

import torch
from common import StepLog, options
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Trainer, TrainerCallback, TrainingArguments

CONFIGS = {
    "gpt2": GPT2Config(vocab_size=256, n_positions=32, n_embd=128, n_layer=2, n_head=4),
    "llama": LlamaConfig(  # for a GPU: 0.9 GiB a sample in bfloat16
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=8,
        num_attention_heads=16,
        max_position_embeddings=512,
    ),
}


class Texts(torch.utils.data.Dataset):
    """Random tokens, as many as the training needs."""

    def __init__(self, length, tokens):
        self.length, self.tokens = length, tokens

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        tokens = torch.randint(256, (self.tokens,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class ExactTrainer(Trainer):
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
        if state.is_world_process_zero:
            self.log(self.trainer.loss_of_step)
        self.trainer.loss_of_step = 0.0


def main():
    args = options(("--model", "gpt2"), ("--checkpointing", 0))
    torch.manual_seed(0)
    config = CONFIGS[args.model]
    model = AutoModelForCausalLM.from_config(config)
    arguments = TrainingArguments(
        output_dir=str(args.out),
        per_device_train_batch_size=args.micro_batch_size,
        gradient_accumulation_steps=args.accumulation,
        max_steps=args.steps,
        use_cpu=args.device == "cpu",
        bf16=args.device == "cuda",
        gradient_checkpointing=bool(args.checkpointing),
        report_to=[],
        disable_tqdm=True,
    )
    number = args.micro_batch_size * args.accumulation * args.steps * arguments.world_size
    texts = Texts(number, config.max_position_embeddings)
    trainer = ExactTrainer(model=model, args=arguments, train_dataset=texts, callbacks=[log := Log()])
    log.trainer = trainer
    trainer.train()


if __name__ == "__main__":
    main()
