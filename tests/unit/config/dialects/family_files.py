"""Small files of every family, with the word at its own key."""

from __future__ import annotations

# Text of a small file of each family, with the word; its ending; and what follows: accumulation, replicas, global
# batch, tokens of a sample.
TEXTS: dict[str, tuple[str, str, tuple[int | None, int | None, int | None, int | None]]] = {
    "axolotl": (
        ".yml",
        "base_model: m\nmicro_batch_size: explore\ngradient_accumulation_steps: 4\ndatasets: []\nsequence_len: 512\n",
        (4, None, None, 512),
    ),
    "llama-factory": (
        ".yaml",
        "model_name_or_path: m\nstage: sft\nfinetuning_type: lora\ntemplate: llama3\ncutoff_len: 2048\n"
        "per_device_train_batch_size: explore\ngradient_accumulation_steps: 8\noutput_dir: o\n",
        (8, None, None, 2048),
    ),
    "trl": (
        ".yaml",
        "model_name_or_path: m\ndataset_name: d\nper_device_train_batch_size: explore\nmax_length: 64\n",
        (None, None, None, 64),
    ),
    "transformers": (
        ".json",
        '{"output_dir": "o", "per_device_train_batch_size": "explore", "gradient_accumulation_steps": 2}',
        (2, None, None, None),
    ),
    "nemo": (
        ".yaml",
        "trainer:\n  devices: 8\n  num_nodes: 2\nmodel:\n  micro_batch_size: explore\n  global_batch_size: 256\n"
        "  tensor_model_parallel_size: 2\n  encoder_seq_length: 1024\n",
        (None, 8, 256, 1024),
    ),
    "litgpt": (
        ".yaml",
        "devices: 4\nout_dir: o\ntrain:\n  save_interval: 9\n  micro_batch_size: explore\n  global_batch_size: 64\n",
        (None, 4, 64, None),
    ),
    "nanotron": (
        ".yaml",
        "parallelism:\n  dp: 2\n  tp: 1\n  pp: 1\ntokens:\n  micro_batch_size: explore\n"
        "  batch_accumulation_per_replica: 4\n  sequence_length: 256\n",
        (4, 2, None, 256),
    ),
    "deepspeed": (
        ".json",
        '{"train_micro_batch_size_per_gpu": "explore", "train_batch_size": 32, "gradient_accumulation_steps": "auto",'
        ' "zero_optimization": {"stage": 2}}',
        (None, None, 32, None),
    ),
    "torchtune": (
        ".yaml",
        "batch_size: explore\ngradient_accumulation_steps: 3\nmodel:\n  _component_: m\n"
        "tokenizer:\n  _component_: t\n  max_seq_len: 128\n",
        (3, None, None, 128),
    ),
    "torchtitan": (
        ".toml",
        '[job]\ndump_folder = "o"\n[model]\nname = "llama3"\n[training]\nlocal_batch_size = "explore"\n'
        "global_batch_size = 64\nseq_len = 2048\n[parallelism]\ndata_parallel_replicate_degree = 2\n"
        "data_parallel_shard_degree = 4\n",
        (None, 8, 64, 2048),
    ),
    "lightning-cli": (
        ".yaml",
        "trainer:\n  devices: 2\n  accumulate_grad_batches: 2\nmodel:\n  class_path: m.M\n"
        "data:\n  class_path: m.D\n  init_args:\n    batch_size: explore\n",
        (2, 2, None, None),
    ),
}
