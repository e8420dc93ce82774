"""Trainers of PyTorch modules: torchtitan, torchtune, Composer with llm-foundry, OLMo, LitGPT and the Lightning CLI.

torchtitan: a global batch of -1 is the local one of all replicas. torchtune: the global batch follows from batch size
and accumulation. Composer and OLMo: the accumulation follows from the global batch, with Composer an uneven one, too;
OLMo-core counts tokens instead of samples. LitGPT derives the accumulation, without a check that it divides. Lightning
CLI: devices and hosts multiply to the replicas, and the batch size is an argument of the user's own data or model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from bexplore.config.dialects.family import Family, Numbers, Program, Remainder, Signature
from bexplore.config.document.reader import KeyPath
from bexplore.config.document.values import Values, paths_below


def _rules_of_torchtitan(numbers: Numbers, values: Values) -> Iterator[str]:
    total, micro, replicas = numbers.global_batch_size, numbers.micro_batch_size, numbers.num_replicas
    if total and micro and replicas and total % (micro * replicas):
        yield (
            f"training.global_batch_size {total} is not divisible by local_batch_size {micro} x data-parallel degree "
            f"{replicas}: torchtitan's Trainer asserts it"
        )


def _program_of_torchtitan(values: Values, num_processes: int) -> Program:
    """Return the module that trains: as long as a file said `batch_size`, it was a script in torchtitan's folder."""
    is_old = values.has("training.batch_size")
    module = ("train.py",) if is_old else ("-m", "torchtitan.train")
    return Program(launched=(*module, "--job.config_file", "{config}"), is_certain=not is_old)


TORCHTITAN = Family(
    name="torchtitan",
    title="torchtitan",
    source="torchtitan.config.job_config: Training, Parallelism; torchtitan.train: Trainer",
    signatures=(
        Signature(
            any_of=("training.local_batch_size", "training.batch_size", "training.global_batch_size"),
            suffixes=(".toml",),
            score=1,
        ),
    ),
    marks=(
        *(
            "training.local_batch_size",
            "training.seq_len",
            "training.warmup_steps",
            "training.max_norm",
            "job.dump_folder",
        ),
        *("job.description", "model.flavor", "model.name", "parallelism", "activation_checkpoint", "metrics", "float8"),
        *("lr_scheduler", "profiling", "experimental", "training.data_parallel_degree", "training.compile"),
    ),
    micro_batch_size=("training.local_batch_size", "training.batch_size"),
    global_batch_size=("training.global_batch_size",),
    replicas=(("parallelism.data_parallel_replicate_degree",), ("parallelism.data_parallel_shard_degree",)),
    all_that_remain=("parallelism.data_parallel_shard_degree",),
    parallel_degrees=(
        ("parallelism.tensor_parallel_degree",),
        ("parallelism.pipeline_parallel_degree",),
        ("parallelism.context_parallel_degree",),
    ),
    sequence_length=("training.seq_len",),
    output_dir=("job.dump_folder",),
    memory=(
        *("activation_checkpoint", "parallelism", "compile", "training.compile", "model", "float8"),
        *("quantize", "training.mixed_precision_param"),
    ),
    rules=_rules_of_torchtitan,
    program=_program_of_torchtitan,
    note="releases since August 2026 configure in Python and in tokens: type {micro_batch_size} behind --",
)


def _rules_of_torchtune(numbers: Numbers, values: Values) -> Iterator[str]:
    if (numbers.accumulation or 1) > 1 and values.get("optimizer_in_bwd") is True:
        yield "optimizer_in_bwd and gradient accumulation exclude each other: the recipe raises a RuntimeError"
    if values.get("enable_activation_offloading") is True and values.get("enable_activation_checkpointing") is False:
        yield "enable_activation_offloading needs enable_activation_checkpointing"


# Keys that the recipes `full_finetune_*` and `lora_finetune_*` read. Source: torchtune 0.6, recipes/configs.
# A file with others is of another recipe (distillation, quantization, preferences): these would ignore its keys.
_KEYS_OF_FINETUNING = frozenset(
    (
        *(
            "model",
            "tokenizer",
            "checkpointer",
            "dataset",
            "dataset_val",
            "optimizer",
            "lr_scheduler",
            "loss",
            "profiler",
        ),
        *(
            "metric_logger",
            "resume_from_checkpoint",
            "save_adapter_weights_only",
            "seed",
            "shuffle",
            "batch_size",
            "dtype",
        ),
        *(
            "batch_size_val",
            "epochs",
            "max_steps_per_epoch",
            "gradient_accumulation_steps",
            "clip_grad_norm",
            "compile",
        ),
        *(
            "optimizer_in_bwd",
            "device",
            "enable_activation_checkpointing",
            "enable_activation_offloading",
            "output_dir",
        ),
        *("log_every_n_steps", "log_peak_memory_stats", "log_level", "fsdp_cpu_offload", "fsdp_reshard_after_forward"),
        *("custom_sharded_layers", "tensor_parallel_dim", "tensor_parallel_plan", "data_parallel_replicate_dim"),
        *("enable_async_checkpointing", "run_val_every_n_steps", "ac_mode", "ac_option", "keep_last_n_checkpoints"),
        *(
            "save_last_epoch_only",
            "context_parallel_dim",
            "enable_fp8_training",
            "fp8_recipe_name",
            "cudnn_deterministic_mode",
        ),
    )
)
# A key of other recipes, and the likeliest of them: a line to type, as their names have changed between releases.
_METHODS_OF_TORCHTUNE = (
    ("kd_loss", "knowledge_distillation"),
    ("quantizer", "qat"),
    ("ref_checkpointer", "{adapter}_dpo"),
    ("policy_model", "ppo_full_finetune"),
)
# Keys that every other recipe ignores without a message.
_READ_ONLY_BY = (("kd_loss", re.compile("kd|knowledge_distillation")), ("quantizer", re.compile("qat|quantize")))
_TUNE_RUN = re.compile(r"\btune run\b([^`\n]*)")


def _read_recipe(header: str) -> str | None:
    """Return the recipe of the comments above a file: `tune run --nproc_per_node 2 RECIPE --config NAME`.

    The last one counts: a distillation needs a teacher, and names its recipe before its own.
    """
    recipe = None
    for found in _TUNE_RUN.finditer(re.sub(r"\\\s*\n", " ", header)):
        words = iter(found[1].split())
        for word in words:
            if not word.startswith("-"):
                recipe = word if next(words, "") == "--config" else recipe
                break
            if "=" not in word and word != "--standalone":  # the option's value
                next(words, None)
    return recipe


def _program_of_torchtune(values: Values, num_processes: int) -> Program:
    """Return `tune run` of the recipe that the file names above its keys, or that its keys leave no doubt of."""
    recipe = _read_recipe(values.header)
    if recipe is not None and any(values.has(key) and not of.search(recipe) for key, of in _READ_ONLY_BY):
        recipe = None  # the comments are those of the file that this one was made from
    is_certain = recipe is not None or _KEYS_OF_FINETUNING.issuperset({*values.values} - {"explore"})
    if recipe is None:
        adapter = "lora" if "lora" in str(values.get("model._component_", "")) else "full"
        has_shards = values.has("fsdp_cpu_offload") or values.has("custom_sharded_layers")
        method = next((method for key, method in _METHODS_OF_TORCHTUNE if values.has(key)), "{adapter}_finetune")
        recipe = f"{method.format(adapter=adapter)}_{'distributed' if has_shards else 'single_device'}"
    if num_processes > 1:
        recipe = recipe.replace("single_device", "distributed")
    launcher = ("--nproc_per_node", str(num_processes)) if "distributed" in recipe else ()
    return Program(words=("tune", "run", *launcher, recipe, "--config", "{config}"), is_certain=is_certain)


TORCHTUNE = Family(
    name="torchtune",
    title="torchtune",
    source="torchtune's recipes: full_finetune_single_device and its kin",
    signatures=(
        Signature(
            any_of=("model._component_", "models", "policy_model", "tokenizer._component_", "dataset._component_"),
            all_of=("batch_size",),
            score=1,
        ),
        # The asynchronous recipe, whose workers have sections of their own.
        Signature(any_of=("model._component_", "dataset._component_"), all_of=("training.batch_size",), score=1),
    ),
    marks=(
        *("model._component_", "tokenizer._component_", "dataset._component_", "checkpointer._component_"),
        *("optimizer._component_", "loss._component_", "lr_scheduler._component_", "metric_logger._component_"),
    ),
    micro_batch_size=("batch_size", "training.batch_size"),
    accumulation=("gradient_accumulation_steps",),
    sequence_length=("tokenizer.max_seq_len",),
    output_dir=("output_dir",),
    memory=(
        *("dtype", "model", "enable_activation_checkpointing", "enable_activation_offloading", "optimizer"),
        *("optimizer_in_bwd", "compile", "dataset.packed", "fsdp_cpu_offload"),
    ),
    probing={"resume_from_checkpoint": False},
    rules=_rules_of_torchtune,
    program=_program_of_torchtune,
)


def _whole_shares(otherwise: str) -> Callable[[Numbers, Values], Iterator[str]]:
    """Return the rule that the global batch has a whole share for each device, with what the trainer does otherwise."""

    def rules(numbers: Numbers, values: Values) -> Iterator[str]:
        total, replicas = numbers.global_batch_size, numbers.num_replicas
        if total and replicas and total % replicas:
            yield f"global_train_batch_size {total} is not divisible by the {replicas} devices: {otherwise}"

    return rules


# Models that llm-foundry's `train.py` builds. Source: llmfoundry.models: registry `models`.
_OF_LLM_FOUNDRY = ("mpt_causal_lm", "hf_causal_lm", "hf_prefix_lm", "hf_t5", "fc_causal_lm")


def _program_of_composer(values: Values, num_processes: int) -> Program:
    """Return llm-foundry's script; files of other projects are read by one of their own, most often `main.py`."""
    model = values.get("model.name") or values.get("parameters.model.name")
    script = "train.py" if model is None or model in _OF_LLM_FOUNDRY else "main.py"
    return Program(
        words=("composer", script, "{config}"), launched=(script, "{config}"), is_certain=model in _OF_LLM_FOUNDRY
    )


COMPOSER = Family(
    name="composer",
    title="Composer, llm-foundry",
    source="llmfoundry.utils.config_utils: calculate_batch_size_info; composer.Trainer: device_train_microbatch_size",
    signatures=(
        Signature(
            any_of=(
                *("device_train_microbatch_size", "parameters.device_train_microbatch_size", "device_train_grad_accum"),
                *("trainer.device_train_microbatch_size", "parameters.global_train_batch_size"),
            ),
        ),
        Signature(any_of=("global_train_batch_size", "train_loader.global_batch_size", "grad_accum"), score=1),
    ),
    marks=(
        *("train_loader", "max_duration", "callbacks", "algorithms", "fsdp_config", "eval_interval", "save_folder"),
        *("save_interval", "tokenizer.name", "loggers", "load_path", "global_seed", "max_seq_len", "schedulers"),
    ),
    micro_batch_size=(
        "device_train_microbatch_size",
        "parameters.device_train_microbatch_size",
        "trainer.device_train_microbatch_size",
    ),
    global_batch_size=("global_train_batch_size", "parameters.global_train_batch_size"),
    accumulation=("device_train_grad_accum", "grad_accum"),
    replicas=(("compute.gpus",),),
    sequence_length=("max_seq_len", "variables.max_seq_len", "parameters.max_seq_len"),
    output_dir=("save_folder", "parameters.save_folder"),
    memory=(
        *("fsdp_config", "precision", "model", "optimizer", "variables", "parameters.fsdp_config", "parameters.model"),
    ),
    remainder=Remainder.SMALLER,
    rules=_whole_shares("llm-foundry's calculate_batch_size_info raises a ValueError"),
    program=_program_of_composer,
    note="started from llm-foundry's scripts/train; auto halves the size on out-of-memory and is replaced",
)

OLMO = Family(
    name="olmo",
    title="OLMo",
    source="olmo.config: TrainConfig; scripts/train.py",
    signatures=(
        Signature(
            all_of=("global_train_batch_size",),
            any_of=("model.d_model", "model.mlp_ratio", "model.mlp_hidden_size"),
            none_of=("train_loader",),
        ),
        Signature(all_of=("device_train_microbatch_size", "model.d_model"), any_of=("model.rope", "save_folder")),
    ),
    foreign=("defaults", "train_loader", "callbacks", "algorithms", "max_seq_len", "fsdp_config", "variables"),
    micro_batch_size=("device_train_microbatch_size",),
    global_batch_size=("global_train_batch_size",),
    sequence_length=("model.max_sequence_length",),
    output_dir=("save_folder",),
    memory=("model", "activation_checkpointing", "precision", "fsdp", "distributed_strategy", "compile"),
    rules=_whole_shares("train.py asserts it"),
    program=lambda values, num_processes: Program(launched=("scripts/train.py", "{config}")),
)

OLMO_CORE = Family(
    name="olmo-core",
    title="OLMo-core",
    source="olmo_core.train.train_module: TransformerTrainModuleConfig; olmo_core.data: NumpyDataLoaderConfig",
    signatures=(Signature(any_of=("train_module.rank_microbatch_size", "trainer.rank_microbatch_size")),),
    micro_batch_size=("train_module.rank_microbatch_size", "trainer.rank_microbatch_size"),
    global_batch_size=("data_loader.global_batch_size",),
    sequence_length=("dataset.sequence_length", "train_module.max_sequence_length"),
    output_dir=("trainer.save_folder",),
    memory=("model", "train_module.ac_config", "train_module.dp_config", "train_module.compile_model"),
    counts_tokens=True,
    note="in tokens: the size times the sequence length",
)


_LITGPT_METHODS = (("lora_r", "finetune_lora"), ("adapter_start_layer", "finetune_adapter"), ("model_name", "pretrain"))


def _rules_of_litgpt(numbers: Numbers, values: Values) -> Iterator[str]:
    total, replicas, micro = numbers.global_batch_size, numbers.num_replicas, numbers.micro_batch_size
    if total and replicas and total // replicas == 0:
        yield f"train.global_batch_size {total} is smaller than the {replicas} devices"
    if total and replicas and micro and total // replicas < micro:
        yield (
            f"train.micro_batch_size {micro} is larger than the {total // replicas} samples of one device in a step: "
            "LitGPT would accumulate over 0 micro-batches"
        )
    if values.get("train.max_steps") is not None and values.get("train.max_tokens") is not None:
        yield "train.max_steps and train.max_tokens exclude each other"


def _program_of_litgpt(values: Values, num_processes: int) -> Program:
    method = next((method for key, method in _LITGPT_METHODS if values.has(key)), None)
    if method is None:
        method = "finetune_full" if values.has("checkpoint_dir") else "pretrain"
    return Program(words=("litgpt", method, "--config", "{config}"))


LITGPT = Family(
    name="litgpt",
    title="LitGPT",
    source="litgpt.args: TrainArgs.gradient_accumulation_iters and batch_size",
    signatures=(
        Signature(
            all_of=("train",),
            any_of=(
                *("train.max_seq_length", "train.lr_warmup_steps", "train.save_interval", "train.lr_warmup_fraction"),
                *("train.tie_embeddings", "checkpoint_dir", "initial_checkpoint_dir"),
            ),
            none_of=("job", "training"),
            score=1,
        ),
    ),
    marks=(
        *("train.micro_batch_size", "train.global_batch_size", "train.max_seq_length", "train.lr_warmup_steps"),
        *(
            "train.max_tokens",
            "train.min_lr",
            "train.tie_embeddings",
            "eval.interval",
            "eval.max_new_tokens",
            "out_dir",
        ),
        *("checkpoint_dir", "initial_checkpoint_dir", "tokenizer_dir", "logger_name", "precision", "model_name"),
    ),
    micro_batch_size=("train.micro_batch_size",),
    global_batch_size=("train.global_batch_size",),
    replicas=(("devices",), ("num_nodes",)),
    sequence_length=("train.max_seq_length",),
    output_dir=("out_dir",),
    memory=("precision", "quantize", "model_name", "model_config", "lora_r", "checkpoint_dir", "optimizer"),
    remainder=Remainder.DROPPED,
    rules=_rules_of_litgpt,
    program=_program_of_litgpt,
)

_LIGHTNING_PLACES = ("data.init_args.batch_size", "data.batch_size", "model.init_args.batch_size")
_LIGHTNING_SIZES = ("batch_size", "train_batch_size", "micro_batch_size")
_OF_EVALUATION = ("val", "test", "eval", "predict")


def _find_size(values: Values) -> KeyPath | None:
    """Return the shortest path to a batch size of the training data: its name is an argument of the user's class."""
    found = [
        path
        for section in ("data", "model")
        for path in paths_below(values.values.get(section), (section,))
        if path[-1] in _LIGHTNING_SIZES and not any(str(key).startswith(_OF_EVALUATION) for key in path)
    ]
    return min(found, key=len, default=None)


LIGHTNING_CLI = Family(
    name="lightning-cli",
    title="Lightning CLI",
    source="lightning.pytorch.cli.LightningCLI; Trainer: accumulate_grad_batches, devices, num_nodes",
    signatures=(
        Signature(
            all_of=("trainer",),
            any_of=("model.class_path", "data.class_path", *_LIGHTNING_PLACES, "trainer.max_epochs"),
            none_of=("trainer.init", "model.micro_batch_size", "exp_manager"),
            score=1,
        ),
        Signature(all_of=("model.class_path", "data.class_path")),
        Signature(all_of=("trainer", "seed_everything", "model"), none_of=("trainer.init",), score=2),
    ),
    marks=(
        *("model.class_path", "data.class_path", "seed_everything", "trainer.accelerator", "trainer.max_epochs"),
        *("trainer.default_root_dir", "trainer.callbacks", "trainer.precision", "trainer.strategy", "ckpt_path"),
        *(
            "trainer.num_sanity_val_steps",
            "trainer.log_every_n_steps",
            "optimizer.class_path",
            "lr_scheduler.class_path",
        ),
    ),
    foreign=("defaults", "trainer._target_", "model._target_", "data._target_", "input_features", "model.train_ds"),
    micro_batch_size=_LIGHTNING_PLACES,
    find_size=_find_size,
    accumulation=("trainer.accumulate_grad_batches",),
    replicas=(("trainer.devices",), ("trainer.num_nodes",)),
    output_dir=("trainer.default_root_dir",),
    memory=("trainer.precision", "trainer.strategy", "model", "trainer.gradient_clip_val"),
    reads_absent_size=False,
    note="-- python main.py fit --config {config}",
)
