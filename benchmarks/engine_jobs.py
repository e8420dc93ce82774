"""The jobs of the engine's benchmark: files as a user would write them, on the CPU and on a CUDA device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ruamel.yaml import YAML

from bexplore.config.config import Config
from bexplore.config.load import load_config

FOLDER = Path(__file__).parent / "jobs"
SMALLEST_OF_SWEEP = 2  # from 1 on the sweep would be longer, and every ratio to it better for the exploration
TRUTHS_AT_MOST = 24
# README advises this `explore.tolerance` where a machine's noise hides the default 2 %.
WIDE_TOLERANCE = 0.05
TRUTH_SPAN = 32  # the truth reaches from what fits down to this fraction of it


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJob:
    """A training job, and how long its measurements take before any of them is known.

    Attributes:
        config: Its file.
        title: For tables.
        expected_s: Seconds of a measurement by its kind on two cores; for the plan only.
    """

    config: Path
    title: str
    expected_s: Mapping[str, float] = field(default_factory=dict)


def _job(name: str, title: str, explore: float, floor: float, sweep: float, truth: float, rival: float) -> EngineJob:
    expected_s = {"explore": explore, "floor": floor, "sweep": sweep, "truth": truth, "rival": rival, "survive": truth}
    return EngineJob(config=FOLDER / f"engine_{name}.yaml", title=title, expected_s=expected_s)


CPU_JOBS: dict[str, EngineJob] = {
    "gpt": _job("gpt", "GPT, 12 layers, hidden 384, 256 tokens", 100, 45, 220, 350, 110),
    "llama_hf": _job("llama_hf", "transformers LLaMA, 8 layers, hidden 512, 128 tokens", 90, 45, 150, 260, 90),
    "bert": _job("bert", "transformers BERT, 6 layers, hidden 256, 128 tokens", 70, 35, 120, 200, 60),
    "vit": _job("vit", "transformers ViT, 6 layers, hidden 192, 65 tokens", 70, 35, 120, 200, 60),
}
QUICK_JOBS: dict[str, EngineJob] = {
    "small": _job("small", "GPT, 4 layers, hidden 128, 64 tokens", 40, 20, 80, 90, 30),
}
CUDA_JOBS: dict[str, EngineJob] = {
    "cuda_gpt": _job("cuda_gpt", "GPT-2 small, 1024 tokens, bfloat16", 120, 60, 240, 300, 60),
    "cuda_llama_hf": _job(
        "cuda_llama_hf", "transformers LLaMA, 16 layers, hidden 1024, bfloat16", 120, 60, 300, 360, 60
    ),
    "cuda_bert": _job("cuda_bert", "transformers BERT base, 512 tokens, bfloat16", 120, 60, 300, 360, 60),
    "cuda_vit": _job("cuda_vit", "transformers ViT base, bfloat16", 120, 60, 300, 360, 60),
}
JOBS = CPU_JOBS | QUICK_JOBS | CUDA_JOBS

_HF = "explore.workload.transformers.config"
_TINY_HF = (
    f"{_HF}.num_hidden_layers=2",
    f"{_HF}.hidden_size=16",
    f"{_HF}.intermediate_size=32",
    f"{_HF}.num_attention_heads=2",
)
_TINY_TOKENS = ("explore.workload.sequence_length=8", f"{_HF}.vocab_size=64", f"{_HF}.max_position_embeddings=8")
_TINY = ("train_input.batch_size=16", "explore.max=4")
_ON_CPU = ("explore.device=cpu", "explore.memory_budget=1MiB", "explore.compile.backend=eager")  # some tens of samples
# What makes the jobs for CUDA so small that a step takes milliseconds, to exercise what is done with them.
_TINY_OVERRIDES: Mapping[str, Sequence[str]] = {
    "cuda_gpt": (
        "model.vocab_size=64",
        "model.hidden_size=16",
        "model.num_hidden_layers=2",
        "model.num_heads=2",
        "model.filter_size=32",
        "model.max_position_embeddings=8",
        *_TINY,
    ),
    "cuda_llama_hf": (*_TINY_HF, *_TINY_TOKENS, f"{_HF}.num_key_value_heads=2", *_TINY),
    "cuda_bert": (*_TINY_HF, *_TINY_TOKENS, *_TINY),
    "cuda_vit": (*_TINY_HF, f"{_HF}.image_size=8", f"{_HF}.patch_size=4", f"{_HF}.num_labels=8", *_TINY),
}


def tiny_overrides(name: str, device: str = "cpu") -> list[str]:
    """What makes a job for CUDA tiny; on the CPU it is not compiled either."""
    return [*_TINY_OVERRIDES[name], *(_ON_CPU if device == "cpu" else (f"explore.device={device}",))]


# Compile seconds by depth and by candidates are those of a job whose passes cost next to nothing.
VARIED_CONFIG = FOLDER / "engine_small.yaml"
DEPTHS = (2, 4, 8, 16)
CANDIDATES = (4, 16, 64)


def tiny_jobs(folder: Path, device: str = "cpu") -> dict[str, EngineJob]:
    """The jobs for CUDA, tiny and on another device, as files in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    jobs = {}
    for name, job in CUDA_JOBS.items():
        config = folder / job.config.name
        _write_overridden(job.config, tiny_overrides(name, device), config)
        jobs[name] = dataclasses.replace(job, config=config, expected_s=dict.fromkeys(job.expected_s, 1.0))
    return jobs


def _write_overridden(source: Path, overrides: Sequence[str], target: Path) -> None:
    yaml = YAML()
    values = yaml.load(source)
    for override in overrides:
        path, _, value = override.partition("=")
        *sections, key = path.split(".")
        section = values
        for name in sections:
            section = section.setdefault(name, {})
        section[key] = yaml.load(value)
    yaml.dump(values, target)


def load(config: Path) -> Config:
    """A job's file, checked; `cuda` becomes its first device, since these processes ask no explorer which one it is."""
    loaded = load_config(config)
    return loaded.on_device("cuda:0") if loaded.job.device == "cuda" else loaded


def sweep_sizes(largest_that_fits: int) -> tuple[int, ...]:
    """The powers of two that a careful user would sweep, up to the largest that fits."""
    return tuple(2**n for n in range(1, largest_that_fits.bit_length()) if 2**n <= largest_that_fits)


def truth_sizes(largest_that_fits: int, answers: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Powers of two, what lies between them, and what was answered: at most 24 sizes, ascending."""
    least = max(SMALLEST_OF_SWEEP, largest_that_fits // TRUTH_SPAN)
    grid = {size for n in range(1, 20) for size in (2**n, 3 * 2 ** (n - 1)) if least <= size <= largest_that_fits}
    wanted = sorted(set(answers)) + sorted(grid - set(answers), reverse=True)
    return tuple(sorted(wanted[:TRUTHS_AT_MOST]))
