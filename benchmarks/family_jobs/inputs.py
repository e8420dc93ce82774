"""Make what the jobs' files name: a tiny Llama with random weights, its tokenizer, and texts of random words."""

import json
import random
import sys
from pathlib import Path

WORDS, TEXTS, LENGTH = 200, 8000, 48


def main():
    folder = Path(sys.argv[1])
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    special = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>"}
    words = {word: index for index, word in enumerate([*special.values(), *(f"w{i}" for i in range(WORDS))])}
    plain = Tokenizer(WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, model_max_length=64, **special)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    tokenizer.save_pretrained(folder / "model")
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    draw = random.Random(0)
    texts = [" ".join(f"w{draw.randrange(WORDS)}" for _ in range(LENGTH)) for _ in range(TEXTS)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (folder / "texts.jsonl").write_text(lines)
    (folder / "dataset").mkdir()
    (folder / "dataset" / "train.jsonl").write_text(lines)


if __name__ == "__main__":
    main()
