"""Trainings of mila-iqia/milabench, rebuilt from their settings: `python -m benchmarks.published_peaks_jobs JOB SIZE`.

Run on a CUDA device, real or emulated, each prints the peaks of PyTorch's allocator as one JSON object. Models have
random weights, as there; initial values decide no memory, and are left out. Batches come from the host, as there, and
each variable lives as long as there: what a loop binds keeps its memory until it is bound again.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

NUM_STEPS = 6  # from the third on, what is reserved grows no more in any of these jobs
CLASSES = 1000
Step = Callable[[int], Iterator[None]]  # takes a batch size; a training step between two yields


@contextlib.contextmanager
def _without_initial_values() -> Iterator[None]:
    """Leave weights as they are allocated: the host would take a minute for some of the models."""
    names = [name for name in dir(nn.init) if name.endswith("_") and not name.startswith("_")]
    kept = {name: getattr(nn.init, name) for name in names}
    for name in names:
        setattr(nn.init, name, lambda tensor, *_, **__: tensor)
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(nn.init, name, function)


# transformers: benchmarks/huggingface. Adam, and no gradient is ever set to None.


def _bert(_: Any) -> tuple[nn.Module, dict[str, Any]]:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig()), {"input_ids": (512,), "labels": (512,)}


def _t5(_: Any) -> tuple[nn.Module, dict[str, Any]]:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(decoder_start_token_id=0)  # T5's defaults are those of `t5-small`
    return T5ForConditionalGeneration(config), {"input_ids": (1024,), "labels": (1024,)}


def _reformer(_: Any) -> tuple[nn.Module, dict[str, Any]]:
    from transformers import ReformerConfig, ReformerForMaskedLM

    return ReformerForMaskedLM(ReformerConfig(num_buckets=128)), {"input_ids": (4096,), "labels": (4096,)}


def _whisper(_: Any) -> tuple[nn.Module, dict[str, Any]]:
    from transformers import WhisperConfig, WhisperForAudioClassification

    # `openai/whisper-tiny`
    config = WhisperConfig(
        d_model=384,
        encoder_layers=4,
        decoder_layers=4,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        encoder_ffn_dim=1536,
        decoder_ffn_dim=1536,
        vocab_size=51865,
    )
    return WhisperForAudioClassification(config), {"input_features": (80, 3000), "labels": ()}


def _language(build: Callable[[Any], tuple[nn.Module, dict[str, Any]]], precision: str, size: int) -> Iterator[None]:
    is_half = "fp16" in precision
    _allow_tf32(precision)
    with _without_initial_values():
        model, shapes = build(None)
    model = model.cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", enabled=is_half)

    def step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.autocast("cuda", torch.float16) if is_half else contextlib.nullcontext():
            outputs = model(**batch)
        loss = outputs.loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    while True:
        batch = {name: _on_host(name, (size, *shape)).cuda() for name, shape in shapes.items()}
        loss = step(batch)  # noqa: F841 -- it lives on until the next one
        yield


def _on_host(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(shape) if name == "input_features" else torch.zeros(shape, dtype=torch.int64)


# torchvision: benchmarks/torchvision. SGD, and the backward pass within autocast, whose cached weights live until then.


def _vision(
    name: str, precision: str, size: int, *, channels_last: bool = False, fixed: bool = False
) -> Iterator[None]:
    import torchvision

    is_half = "fp16" in precision
    dtype = torch.float16 if is_half else torch.float32
    _allow_tf32(precision)
    with _without_initial_values():
        model = getattr(torchvision.models, name)()
    model = model.cuda().train()
    layout: dict[str, Any] = {"memory_format": torch.channels_last} if channels_last else {}
    model = model.to(**layout) if layout else model
    criterion = nn.CrossEntropyLoss().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cuda", enabled=is_half)
    if fixed:  # the loader `synthetic_fixed` runs the model once, in float32, with images of 244 pixels
        images = torch.randn((size, 3, 244, 244), device="cuda")
        targets = torch.rand_like(model(images))
    while True:
        if fixed:
            inputs, labels = images.to("cuda", dtype, **layout), targets
        else:
            inputs = None  # the loop binds the next batch on the host first
            inputs = torch.empty(size, 3, 224, 224).to("cuda", dtype, **layout)
            labels = torch.zeros(size, dtype=torch.int64).cuda()
        optimizer.zero_grad()
        # always, as there: without half precision the type is float32, which turns autocast off
        with torch.autocast("cuda", dtype) if is_half else contextlib.nullcontext():
            output = model(inputs)
            loss = criterion(output, labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        yield


# benchmarks/lightning: autocast of bfloat16, Adam; the backward pass within the closure of the optimizer's step.


def _lightning(size: int) -> Iterator[None]:
    import torchvision

    _allow_tf32("tf32")
    with _without_initial_values():
        model = torchvision.models.resnet152()
    model = model.cuda().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def closure() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        return loss.detach()

    while True:
        inputs = torch.empty(size, 3, 224, 224).cuda()
        labels = torch.zeros(size, dtype=torch.int64).cuda()
        optimizer.step(closure)
        yield


# benchmarks/timm: timm's own train.py with `--amp --amp-dtype bfloat16`: SGD with momentum, labels smoothed, and a
# loader that normalizes the next batch on the device before the present one is given back.


def _timm(name: str, size: int) -> Iterator[None]:
    import timm
    from timm.loss import LabelSmoothingCrossEntropy

    _allow_tf32("tf32")
    with _without_initial_values():
        model = timm.create_model(name)
    model = model.cuda().train()
    criterion = LabelSmoothingCrossEntropy(smoothing=0.1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=2e-5)
    mean, deviation = (torch.zeros(1, 3, 1, 1, device="cuda") for _ in range(2))
    stream = torch.cuda.Stream()

    def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        inputs = target = None
        while True:
            with torch.cuda.stream(stream):
                next_input = torch.zeros(size, 3, 224, 224, dtype=torch.uint8).cuda(non_blocking=True)
                next_target = torch.zeros(size, dtype=torch.int64).cuda(non_blocking=True)
                next_input = next_input.to(torch.float32).sub_(mean).div_(deviation)
            if inputs is not None and target is not None:
                yield inputs, target
            torch.cuda.current_stream().wait_stream(stream)
            inputs, target = next_input, next_target

    for inputs, target in batches():
        with torch.autocast("cuda", torch.bfloat16):
            output = model(inputs)
            loss = criterion(output, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield


def _allow_tf32(precision: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = "tf32" in precision


# Published name -> the training.
JOBS: dict[str, Step] = {
    **{
        f"bert-{precision}": partial(_language, _bert, precision) for precision in ("fp16", "fp32", "tf32", "tf32-fp16")
    },
    "t5": partial(_language, _t5, "tf32-fp16"),
    "reformer": partial(_language, _reformer, "tf32-fp16"),
    "whisper": partial(_language, _whisper, "tf32-fp16"),
    **{
        f"convnext_large-{precision}": partial(_vision, "convnext_large", precision)
        for precision in ("fp16", "fp32", "tf32", "tf32-fp16")
    },
    "regnet_y_128gf": partial(_vision, "regnet_y_128gf", "tf32-fp16"),
    "resnet50": partial(_vision, "resnet50", "tf32-fp16", channels_last=True),
    "resnet50-noio": partial(_vision, "resnet50", "tf32-fp16", channels_last=True, fixed=True),
    "lightning": _lightning,
    "focalnet": partial(_timm, "focalnet_base_lrf"),
}


def main() -> None:
    name, size = sys.argv[1], int(sys.argv[2])
    steps = JOBS[name](size)
    for _ in range(NUM_STEPS):
        next(steps)
    torch.cuda.synchronize()
    print(
        json.dumps(
            {
                "allocated_bytes": torch.cuda.max_memory_allocated(),
                "reserved_bytes": torch.cuda.max_memory_reserved(),
                "num_alloc_retries": torch.cuda.memory_stats()["num_alloc_retries"],
            }
        ),
        flush=True,
    )
    os._exit(0)  # autograd's thread for a device may take Python's lock while it ends, which ends it by a signal


if __name__ == "__main__":
    main()
