"""Models of the `transformers` library by configuration: random weights, nothing downloaded.

`transformers` is an optional extra, which is imported for a job that needs it.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import nn

from bexplore.errors import UserInputError, check_keys, close_match, first_line, positive_int, require, suggestion
from bexplore.job import Job
from bexplore.job.lengths import Collation
from bexplore.workloads.batches import random_tokens, random_values
from bexplore.workloads.modules import is_fake
from bexplore.workloads.torch_private import tree_leaves
from bexplore.workloads.workload import Workload, assemble

_MASKED_SHARE = 0.15  # of the tokens of a sample; source: BERT (arXiv 1810.04805)
_IGNORED_LABEL = -100  # torch's cross entropy leaves it out by default
_DEFAULT_IMAGE_SIZE = 224  # pixels; for models whose configuration has none, such as ResNet
_OTHER_SIZES = "interpolate_pos_encoding"  # by which the forward pass of a model takes images of other sizes
_DEFAULT_LOSS = "ForCausalLM"

HostBatch = dict[str, torch.Tensor]


_TEXT_KEYS = ("sequence_length", "attention_mask")


@dataclass(frozen=True, slots=True)
class _Task:
    """Class of a task's models in the library, the samples of the task, and the keys of `job.data` that it takes."""

    auto_class: str
    make_samples: Callable[[Job, Any, int], HostBatch]
    data_keys: tuple[str, ...] = _TEXT_KEYS


def build_transformers(job: Job) -> Workload:
    """Build `{"task", "model_type", "config", "freeze"}` of `job.model`, with the model's own loss.

    `task` is a key of `TASKS`; `model_type` and `config` are those of the library (`gpt2`, `{"n_layer": 2}`);
    `freeze` lists regular expressions of the names of parameters that are not trained.
    `job.data` may hold `sequence_length` and `target_length` (tokens), `image_size` (pixels) and `attention_mask`
    (true: give the model a mask of ones, as a padding collator would).
    """
    check_keys(job.model, ("task", "model_type", "config", "freeze"), "A transformers model")
    task_name = job.model.get("task", "causal_lm")
    require(task_name in TASKS, f"There is no task {task_name!r}.", suggestion(str(task_name), TASKS))
    task = TASKS[task_name]
    check_keys(job.data, task.data_keys, f"The data of {task_name}")
    if task_name == "image_text_to_text":
        # The library counts image tokens at every pass. That reads values, which a trace on fake tensors lacks.
        os.environ.setdefault("TRANSFORMERS_DISABLE_TORCH_CHECK", "1")
    model = _build_model(job, task_name)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(re.search(pattern, name) for pattern in job.model.get("freeze", ())))
    device = torch.device(job.device)

    takes_positions = task_name == "causal_lm" and "position_ids" in inspect.signature(model.forward).parameters

    def make_batch(micro_batch_size: int, length: int | None = None) -> tuple[HostBatch]:
        samples = task.make_samples(job if length is None else job.at_length(length), model.config, micro_batch_size)
        if job.data.get("attention_mask"):
            samples["attention_mask"] = _mask(job, samples["input_ids"])
        if takes_positions:
            # the values that the model makes itself behind a check for a single sample, which breaks the graph where
            # the number of samples is symbolic
            samples["position_ids"] = torch.arange(samples["input_ids"].size(1)).repeat(micro_batch_size, 1)
        dtype = next(model.parameters()).dtype
        return ({key: _on_device(value, device, dtype) for key, value in samples.items()},)

    batch_dimensions: list[int | None] = [0] * len(tree_leaves(make_batch(1)))
    plan = _tensor_plan(model, job.parallelism.tensor_parallel_degree)
    return assemble(
        job,
        _OwnLoss(model, _find_keywords(job, model)),
        make_batch,
        batch_dimensions=batch_dimensions,
        make_batch_of_length=make_batch,
        tensor_plan=plan,
    )


def _mask(job: Job, input_ids: torch.Tensor) -> torch.Tensor:
    """Return the mask of a padding collator: ones, but zeros behind the end of a shorter sample."""
    if job.lengths is None or job.lengths.collation is Collation.PACKED:
        return torch.ones_like(input_ids)
    micro_batch_size, length = input_ids.shape
    ends = torch.tensor(job.lengths.samples_of_batch(micro_batch_size, length).tolist())
    return (torch.arange(length) < ends[:, None]).long()


def _tensor_plan(model: Any, degree: int) -> dict[str, str] | None:
    """Return the library's own plan for the layers of a model, by their names in the loss module; None for none.

    What it shares otherwise than by columns or rows (an output that is gathered) stays whole on each rank.
    """
    plan = getattr(model.config, "base_model_tp_plan", None)
    if degree == 1 or not plan:
        return None
    for name in ("num_attention_heads", "num_key_value_heads"):
        count = getattr(model.config, name, None) or degree
        require(
            count % degree == 0,
            f"{name} is {count}, which {degree} tensor-parallel ranks cannot share equally.",
            "Lower explore.parallelism.tensor_parallel_degree.",
        )
    prefix = f"model.{model.base_model_prefix}"
    return {f"{prefix}.{name}": kind for name, kind in plan.items() if kind in ("colwise", "rowwise")}


class _OwnLoss(nn.Module):
    """The loss that a `transformers` model computes when it gets labels."""

    def __init__(self, model: nn.Module, keywords: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self.keywords = model, dict(keywords)

    def forward(self, batch: HostBatch) -> torch.Tensor:
        """Return scalar loss of a batch of keyword arguments."""
        return self.model(**batch, **self.keywords).loss


def _find_keywords(job: Job, model: nn.Module) -> dict[str, Any]:
    """Return what a model needs to take images of other sizes than its configuration's."""
    size = getattr(model.config, "image_size", None)
    is_other = "image_size" in job.data and job.data["image_size"] != size
    takes = _OTHER_SIZES in inspect.signature(model.forward).parameters
    return {_OTHER_SIZES: True} if takes and (job.lengths is not None or is_other) else {}


def _import_library() -> ModuleType:
    try:
        import transformers  # an optional extra, and slow to import
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise UserInputError(
            "The workload `transformers` needs the library of that name, which is not installed.",
            hint="pip install 'bexplore[hf]'",
        ) from error
    return transformers


def _build_model(job: Job, task_name: str) -> Any:
    model_type, settings = job.model.get("model_type"), dict(job.model.get("config") or {})
    library = _import_library()
    from huggingface_hub.errors import StrictDataclassError  # comes with the optional extra

    known_types = library.models.auto.configuration_auto.CONFIG_MAPPING_NAMES
    require(
        model_type in known_types,
        f"transformers {library.__version__} has no model_type {model_type!r}.",
        _nearest(str(model_type), known_types) or "Use the model_type of a config.json, such as gpt2.",
    )
    try:
        config = library.AutoConfig.for_model(model_type, **settings)
        _check_config_keys(settings, config)
        _complete(config)
        with torch.device(job.device), _cheap_under_fake_tensors():
            model = getattr(library, TASKS[task_name].auto_class).from_config(config)
    except (ValueError, TypeError, KeyError, StrictDataclassError) as error:  # how the library refuses a configuration
        raise UserInputError(
            f"transformers cannot build {task_name} of {model_type} from {settings}: {first_line(error)}",
            hint="Correct explore.workload.transformers.config; its keys are those of the model's config.json.",
        ) from error
    if is_fake():
        model.tie_weights()  # from_config skips it where it skips the weights
    if getattr(model, "loss_type", None) is None:
        model.loss_type = _DEFAULT_LOSS  # the library's own default, without its warning, which breaks the graph
    return model


def _check_config_keys(settings: Mapping[str, Any], config: Any) -> None:
    """Refuse misspelt keys only: the library takes any key, and real config.json files hold unused ones."""
    known = {*dir(type(config)), *config.attribute_map, *inspect.signature(type(config)).parameters}
    for key in settings:
        near = None if key in known else _nearest(key, known)
        require(near is None, f"The configuration of {config.model_type} has no key {key!r}.", near or "")


def _nearest(value: str, known: Any) -> str | None:
    near = close_match(value, known, cutoff=0.8)
    return f"Did you mean {near}?" if near else None


def _complete(config: Any) -> None:
    config.use_cache = False
    if getattr(config, "problem_type", None) is None:
        config.problem_type = "single_label_classification"  # else the first forward pass sets it, and recompiles
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = config.pad_token_id or 0


def _cheap_under_fake_tensors() -> contextlib.AbstractContextManager[Any]:
    """Skip fake weights: truncated normal draws read values, and fake tensors have none."""
    if not is_fake():
        return contextlib.nullcontext()
    return importlib.import_module("transformers.initialization").no_init_weights()


def _on_device(value: torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return value.to(device=device, dtype=dtype if value.is_floating_point() else value.dtype)


def _causal_samples(job: Job, config: Any, count: int) -> HostBatch:
    tokens = _tokens(job, config, count)
    return {"input_ids": tokens, "labels": tokens.clone()}


def _masked_samples(job: Job, config: Any, count: int) -> HostBatch:
    """Mask the same number of tokens in every sample, so that a mean over them weighs all samples alike."""
    tokens = _tokens(job, config, count)
    length = tokens.size(1)
    stride = max(1, round(1 / _MASKED_SHARE))
    masked = torch.arange(length) % stride == 0
    labels = torch.where(masked, tokens, _IGNORED_LABEL)
    mask_token = getattr(config, "mask_token_id", None) or config.get_text_config().vocab_size - 1
    return {"input_ids": torch.where(masked, mask_token, tokens), "labels": labels}


def _pretraining_samples(job: Job, config: Any, count: int) -> HostBatch:
    follows = random_tokens(count, 1, 2, seed=job.seed + 1).squeeze(1)
    return _masked_samples(job, config, count) | {"next_sentence_label": follows}


def _sequence_samples(job: Job, config: Any, count: int) -> HostBatch:
    labels = random_tokens(count, 1, config.num_labels, seed=job.seed + 1).squeeze(1)
    return {"input_ids": _tokens(job, config, count), "labels": labels}


def _labelled_token_samples(job: Job, config: Any, count: int) -> HostBatch:
    tokens = _tokens(job, config, count)
    return {"input_ids": tokens, "labels": random_tokens(count, tokens.size(1), config.num_labels, seed=job.seed + 1)}


def _image_text_samples(job: Job, config: Any, count: int) -> HostBatch:
    """Put the patches of one image before the text of every sample; the image's tokens have no label."""
    tokens = _tokens(job, config, count)
    image_token, num_patches = config.image_token_id, config.image_seq_length
    require(
        num_patches < tokens.size(1),
        f"The {num_patches} patches of an image leave no token of {tokens.size(1)} for the text.",
        "Lengthen the sequences.",
    )
    tokens = tokens.masked_fill(tokens == image_token, 0)  # only patches have it
    is_patch = torch.arange(tokens.size(1)) < num_patches
    vision = config.vision_config
    shape = (getattr(vision, "num_channels", 3), vision.image_size, vision.image_size)
    return {
        "input_ids": torch.where(is_patch, image_token, tokens),
        "pixel_values": random_values(count, shape, seed=job.seed),
        "labels": torch.where(is_patch, _IGNORED_LABEL, tokens),
    }


def _seq2seq_samples(job: Job, config: Any, count: int) -> HostBatch:
    source = _tokens(job, config, count)
    target_length = positive_int(job.data.get("target_length") or source.size(1), "target_length")
    vocab_size = config.get_text_config().vocab_size
    return {
        "input_ids": source,
        "labels": random_tokens(count, target_length, vocab_size, seed=job.seed + 1),
    }


def _image_samples(job: Job, config: Any, count: int) -> HostBatch:
    size = job.data.get("image_size") or getattr(config, "image_size", None) or _DEFAULT_IMAGE_SIZE
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    shape = (getattr(config, "num_channels", 3), positive_int(height, "image_size"), positive_int(width, "image_size"))
    labels = random_tokens(count, 1, config.num_labels, seed=job.seed + 1).squeeze(1)
    return {"pixel_values": random_values(count, shape, seed=job.seed), "labels": labels}


def _tokens(job: Job, config: Any, count: int) -> torch.Tensor:
    text_config = config.get_text_config()
    longest = getattr(text_config, "max_position_embeddings", None)
    length = job.sequence_length or job.data.get("sequence_length") or longest
    require(
        length is not None,
        f"The job has no sequence_length, and {config.model_type} has no longest one.",
        "Set sequence_length to the tokens of a sample.",
    )
    require(
        longest is None or positive_int(length, "sequence_length") <= longest,
        f"The sequence length {length} exceeds the {longest} positions of {config.model_type}.",
        "Shorten the sequences, or raise the limit in the model's configuration.",
    )
    return random_tokens(count, positive_int(length, "sequence_length"), text_config.vocab_size, seed=job.seed)


TASKS = {
    "causal_lm": _Task("AutoModelForCausalLM", _causal_samples),
    "masked_lm": _Task("AutoModelForMaskedLM", _masked_samples),
    "seq2seq_lm": _Task("AutoModelForSeq2SeqLM", _seq2seq_samples, (*_TEXT_KEYS, "target_length")),
    "pretraining": _Task("AutoModelForPreTraining", _pretraining_samples),
    "sequence_classification": _Task("AutoModelForSequenceClassification", _sequence_samples),
    "token_classification": _Task("AutoModelForTokenClassification", _labelled_token_samples),
    "image_text_to_text": _Task("AutoModelForImageTextToText", _image_text_samples),
    "image_classification": _Task("AutoModelForImageClassification", _image_samples, ("image_size",)),
}
