"""Files of training jobs in the layouts that are read."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from bexplore.config.config import Config
from bexplore.config.load import load_config
from bexplore.errors import UserInputError

FLAG = "csx.performance.micro_batch_size"
GPT = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_heads": 4,
    "filter_size": 128,
    "max_position_embeddings": 64,
    "dropout_rate": 0.0,
}
LLAMA = GPT | {
    "name": "llama",
    "position_embedding_type": "rotary",
    "rotary_dim": 8,
    "rope_theta": 500000.0,
    "norm_type": "rmsnorm",
    "nonlinearity": "swiglu",
    "share_embedding_weights": False,
    "attention_module": "multiquery_attention",
    "extra_attention_params": {"num_kv_groups": 2},
    "use_projection_bias_in_attention": False,
    "use_ffn_bias_in_attention": False,
    "use_ffn_bias": False,
}


def sections(micro: Any = "explore", *, batch_size: Any = 240, num_csx: Any = 2, **changes: Any) -> dict[str, Any]:
    """A file in the older layout."""
    return {
        "train_input": {"data_dir": "./shards", "batch_size": batch_size, "micro_batch_size": micro, "num_workers": 8},
        "model": copy.deepcopy(GPT),
        "optimizer": {"optimizer_type": "adamw", "learning_rate": 0.001, "weight_decay": 0.1, "max_gradient_norm": 1.0},
        "runconfig": {"num_csx": num_csx, "model_dir": "./out", "max_steps": 100},
    } | changes


def trainer(callbacks: Any = (), *, model: Any = None, **init: Any) -> dict[str, Any]:
    """A file in the newer layout."""
    return {
        "trainer": {
            "init": {
                "backend": {"backend_type": "CSX", "cluster_config": {"num_csx": 2}},
                "model": copy.deepcopy(model or LLAMA),
                "optimizer": {"AdamW": {"betas": [0.9, 0.95], "weight_decay": 0.1, "correct_bias": True}},
                "precision": {"enabled": True, "fp16_type": "bfloat16", "max_gradient_norm": 1.0},
                "loop": {"max_steps": 10},
                "callbacks": callbacks if isinstance(callbacks, dict) else list(callbacks),
            }
            | init,
            "fit": {"train_dataloader": {"batch_size": 240}, "val_dataloader": {"batch_size": 120}},
            "validate": {"val_dataloader": {"batch_size": 60}},
        }
    }


class Folder:
    """Writes files and loads them; JSON is YAML, and each value has a line of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path / "job.yaml"

    def load(self, values: Any, **options: Any) -> Config:
        self.path.write_text(values if isinstance(values, str) else json.dumps(values, indent=1))
        return load_config(self.path, **options)

    def refusal(self, values: Any, **options: Any) -> str:
        with pytest.raises(UserInputError) as refused:
            self.load(values, **options)
        return f"{refused.value.message} | {refused.value.hint}"
