"""Jobs and training commands whose samples have the lengths of public data sets, small enough for two processor cores.

Where a source gives quantiles or a histogram, these are taken; where it gives a mean and a spread alone, a distribution
of a usual shape is put through them, as the job's text says. Long documents are shortened by the factor that is named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
SCRIPT = Path(__file__).parent / "command_jobs" / "many_lengths.py"
NUM_SAMPLES = 4096  # of the data set of a training command
_NUM_QUANTILES = 41  # of a distribution that is given by its mean and spread


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthsJob:
    """A job and the lengths of its samples.

    Attributes:
        name: Of the data.
        source: Of the lengths.
        quantiles: Lengths by percent of the samples that are no longer.
        longest: Samples are cut off behind it.
        sections: Of the job's file, beside `explore.lengths`.
        in_tokens: Whether batches have a number of tokens.
        command: Arguments of `command_jobs/many_lengths.py`, for a training command; None for a job.
    """

    name: str
    source: str
    quantiles: Mapping[float, int]
    longest: int
    sections: Mapping[str, Any]
    in_tokens: bool = False
    command: tuple[str, ...] | None = None

    def text(self, *, with_lengths: bool, budget_bytes: int | None = None) -> str:
        """Return the job's file, with the lengths of its samples or with the longest alone."""
        explore = {"candidates": list(SIZES), **self.sections["explore"]}
        if self.command is not None:
            return self._command_text(explore, with_lengths=with_lengths, budget_bytes=budget_bytes)
        if with_lengths:
            explore["lengths"] = {"quantiles": {str(key): value for key, value in self.quantiles.items()}}
            explore["lengths"] |= self.sections.get("lengths", {})
        if budget_bytes is not None:
            explore["memory_budget"] = f"{budget_bytes >> 20}MiB"
        rest = {name: one for name, one in self.sections.items() if name not in ("explore", "lengths")}
        unit = "micro_batch_tokens" if self.in_tokens and with_lengths else "micro_batch_size"
        data = {"batch_size": 192, unit: "explore", "max_sequence_length": self.longest}
        if self.in_tokens and with_lengths:
            explore["lengths"]["padding"] = "sorted"
        elif self.in_tokens:  # without lengths nothing else tells the batch's function its length
            explore["workload"] = {**explore["workload"], "arguments": {"sequence_length": self.longest}}
        return yaml.safe_dump({"train_input": data, **rest, "explore": explore}, sort_keys=False)

    def _command_text(self, explore: dict[str, Any], *, with_lengths: bool, budget_bytes: int | None) -> str:
        words = ["python", str(SCRIPT), "--micro-batch-size", "{micro_batch_size}", "--out", "{output_dir}"]
        explore["command"] = " ".join([*words, "--lengths", "lengths.txt", *(self.command or ())])
        if with_lengths:
            explore["lengths"] = {"file": "lengths.txt"}
        if budget_bytes is not None:
            explore["memory_budget"] = f"{budget_bytes >> 20}MiB"
        return str(yaml.safe_dump({"explore": explore}, sort_keys=False))

    def samples(self, *, with_lengths: bool) -> list[int]:
        """Return the lengths of the samples of a training command's data set."""
        if not with_lengths:
            return [self.longest] * NUM_SAMPLES
        shares = np.linspace(0.0, 100.0, NUM_SAMPLES)
        found = np.interp(shares, list(self.quantiles), list(self.quantiles.values())).round().astype(int)
        return [int(length) for length in np.random.default_rng(1).permutation(found)]


def _through(draws: np.ndarray) -> dict[float, int]:
    marks = np.linspace(0.0, 100.0, _NUM_QUANTILES)
    return {round(float(mark), 3): int(value) for mark, value in zip(marks, np.percentile(draws, marks), strict=True)}


def _gamma(mean: float, sd: float, *, low: float, high: float) -> dict[float, int]:
    draws = np.random.default_rng(0).gamma((mean / sd) ** 2, sd**2 / mean, 200_000)
    return _through(np.clip(draws, low, high))


def _lognormal(median: float, p90: float, *, low: float, high: float) -> dict[float, int]:
    sd = math.log(p90 / median) / 1.2816  # the quantile of 90 % of the normal distribution
    draws = np.exp(np.random.default_rng(0).normal(math.log(median), sd, 200_000))
    return _through(np.clip(draws, low, high))


def _cut(quantiles: Mapping[float, int], longest: int) -> dict[float, int]:
    return {percent: min(length, longest) for percent, length in quantiles.items()}


_BODY = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}
_SQUAD: dict[float, int] = {
    0: 36,
    1: 56,
    5: 84,
    10: 107,
    25: 130,
    50: 159,
    75: 203,
    90: 260,
    95: 299,
    98: 349,
    100: 384,
}
_CAPTIONS: dict[float, int] = {0: 8, 10: 12, 50: 32, 90: 96, 99: 200, 100: 256}


def _own(model: str, batch: str) -> dict[str, Any]:
    paths = {"model": model, "batch": batch, "loss": "loss"}
    own = {name: f"benchmarks.jobs.many_lengths:{path}" for name, path in paths.items()}
    return {"explore": {"workload": {**own, "sequence_length": 256}, "compile": False}}


_OWN = {"model": "benchmarks.jobs.speech:build", "batch": "benchmarks.jobs.speech:make_batch"}


def _transformers(task: str, model_type: str, config: Mapping[str, Any], longest: int) -> dict[str, Any]:
    given = {"task": task, "model_type": model_type, "config": dict(config), "sequence_length": longest}
    return {"explore": {"workload": {"transformers": given}}}


JOBS = (
    LengthsJob(
        name="SQuAD, BERT",
        source="SQuAD v1.1, question and context, BERT tokens in windows of at most 384: quantiles of the histogram "
        "that belongs to Krell et al., arXiv:2107.02027 (graphcore/tutorials, packedBERT/histograms.py)",
        quantiles=_SQUAD,
        longest=384,
        sections=_transformers("masked_lm", "bert", {**_BODY, "vocab_size": 2000, "max_position_embeddings": 384}, 384),
    ),
    LengthsJob(
        name="Alpaca, LLaMA decoder",
        source="Alpaca, LLaMA tokens of prompt and answer: histogram of tloen/alpaca-lora, lengths.ipynb; cut off at "
        "512",
        quantiles=_cut({0: 60, 81.76: 184, 95.21: 256, 97.62: 309, 99.5: 433, 99.88: 558, 100: 1305}, 512),
        longest=512,
        sections={
            "model": {
                "name": "llama",
                "vocab_size": 2000,
                "hidden_size": 128,
                "num_hidden_layers": 2,
                "num_heads": 4,
                "filter_size": 344,
                "max_position_embeddings": 512,
            },
            "explore": {},
        },
    ),
    LengthsJob(
        name="LibriSpeech, speech encoder",
        source="LibriSpeech test-clean, seconds of utterances: quantiles in k2-fsa/icefall, "
        "display_manifest_statistics.py; 10 frames a second",
        quantiles={
            **{0: 13, 1: 20, 5: 23, 10: 27, 25: 37, 50: 58, 75: 96, 90: 146, 95: 178, 99: 255, 99.5: 284},
            **{99.9: 328, 100: 350},
        },
        longest=350,
        sections={
            "lengths": {"argument": "num_frames"},
            "explore": {"workload": _OWN, "compile": False},
        },
    ),
    LengthsJob(
        name="CNN/DailyMail, GPT-2",
        source="CNN/DailyMail, tokens of articles: mean 807, standard deviation 393 (English-Summarization-Datasets-"
        "Analysis); a gamma distribution with these, cut off at 2048, all by 4",
        quantiles=_gamma(806.56 / 4, 393.43 / 4, low=10, high=512),
        longest=512,
        sections=_transformers(
            "causal_lm", "gpt2", {"n_embd": 128, "n_layer": 2, "n_head": 4, "vocab_size": 2000, "n_positions": 512}, 512
        ),
    ),
    LengthsJob(
        name="arXiv, LLaMA",
        source="arXiv documents, SentencePiece tokens: median 8519, 90 % up to 20170 (Ainslie et al., "
        "arXiv:2303.09752, table 4); a lognormal distribution through these, cut off at 32768, all by 64",
        quantiles=_lognormal(8519 / 64, 20170 / 64, low=8, high=512),
        longest=512,
        sections=_transformers(
            "causal_lm",
            "llama",
            {**_BODY, "intermediate_size": 344, "vocab_size": 2000, "max_position_embeddings": 512},
            512,
        ),
    ),
    LengthsJob(
        name="WMT, T5",
        source="WMT16 en-de, subwords of sentences: mean 29.5 (log of fairseq-preprocess in dertilo/machine-"
        "translation); a gamma distribution of shape 2.5 with it, from 2 to 120",
        quantiles=_gamma(29.52, 29.52 / math.sqrt(2.5), low=2, high=120),
        longest=120,
        sections=_transformers(
            "seq2seq_lm",
            "t5",
            {"d_model": 128, "d_kv": 32, "d_ff": 512, "num_layers": 2, "num_heads": 4, "vocab_size": 2000},
            120,
        ),
    ),
    LengthsJob(
        name="Tokens, captions with pictures",
        source="made up, as captions of pictures are: half of up to 32 tokens, some of 256; a picture in each sample",
        quantiles=_CAPTIONS,
        longest=256,
        sections=_own("captions", "pictures"),
        in_tokens=True,
    ),
    LengthsJob(
        name="Tokens, a decoder of fixed length",
        source="the same; a decoder of 48 queries in each sample",
        quantiles=_CAPTIONS,
        longest=256,
        sections=_own("queries", "answers"),
        in_tokens=True,
    ),
    LengthsJob(
        name="Command, padded to the longest",
        source="SQuAD, as above",
        quantiles=_SQUAD,
        longest=384,
        sections={"explore": {}},
        command=(),
    ),
    LengthsJob(
        name="Command, sorted by length",
        source="SQuAD, as above",
        quantiles=_SQUAD,
        longest=384,
        sections={"explore": {}},
        command=("--sorted",),
    ),
)


def job_named(name: str) -> LengthsJob:
    """Return the job of a name."""
    return next(one for one in JOBS if one.name == name)
