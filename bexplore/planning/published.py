"""Global batches of published trainings, by the size of their models: what is usual."""

from __future__ import annotations

from dataclasses import dataclass

# Parameters of models that are compared with each other: a factor either way. Source: a choice of presentation, so that
# each model size from 100 million parameters on has at least three trainings.
ALIKE = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedBatch:
    """The global batch of a published training.

    Attributes:
        name: Of the model.
        num_parameters: Of it.
        batch_tokens: Tokens of an optimizer step, the largest of the training.
        source: Where it was published.
    """

    name: str
    num_parameters: float
    batch_tokens: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualBatch:
    """The range of global batches of models of one size.

    Attributes:
        low: The smallest, tokens.
        high: The largest, tokens.
        sources: The trainings that they are from.
    """

    low: float
    high: float
    sources: str

    def is_usual(self, batch_tokens: float) -> bool:
        """Whether a global batch lies in the range, as far as papers round it."""
        return (1 - ROUNDING) * self.low <= batch_tokens <= (1 + ROUNDING) * self.high


def _batch(name: str, num_parameters: float, batch_tokens: float, source: str) -> PublishedBatch:
    return PublishedBatch(name=name, num_parameters=num_parameters, batch_tokens=batch_tokens, source=source)


# Tokens of a batch where the source gives samples and their length; elsewhere as it is printed.
PUBLISHED: tuple[PublishedBatch, ...] = (
    _batch("GPT-3 125M", 125e6, 0.5e6, "arXiv 2005.14165, table 2.1"),
    _batch("GPT-3 350M", 350e6, 0.5e6, "arXiv 2005.14165, table 2.1"),
    _batch("GPT-3 760M", 760e6, 0.5e6, "arXiv 2005.14165, table 2.1"),
    _batch("GPT-3 1.3B", 1.3e9, 1e6, "arXiv 2005.14165, table 2.1"),
    _batch("GPT-3 2.7B", 2.7e9, 1e6, "arXiv 2005.14165, table 2.1"),
    _batch("GPT-3 6.7B", 6.7e9, 2e6, "arXiv 2005.14165, table 2.1"),
    _batch("GPT-3 13B", 13e9, 2e6, "arXiv 2005.14165, table 2.1"),
    _batch("GPT-3 175B", 175e9, 3.2e6, "arXiv 2005.14165, table 2.1"),
    _batch("Pythia 70M", 70e6, 1024 * 2048, "arXiv 2304.01373, section 2"),
    _batch("Pythia 410M", 410e6, 1024 * 2048, "arXiv 2304.01373, section 2"),
    _batch("Pythia 12B", 12e9, 1024 * 2048, "arXiv 2304.01373, section 2"),
    _batch("TinyLlama 1.1B", 1.1e9, 1024 * 2048, "jzhang38/TinyLlama, README.md"),
    _batch("OLMo 1B", 1.2e9, 2048 * 2048, "arXiv 2402.00838"),
    _batch("SmolLM3 3B", 3.1e9, 576 * 4096, "Hugging Face blog, smollm3"),
    _batch("LLaMA 7B", 6.7e9, 2048 * 2048, "arXiv 2302.13971, table 2"),
    _batch("Skywork-13B", 13.85e9, 3906 * 4096, "arXiv 2310.19341, section 3.5"),
    _batch("Nemotron-4 15B", 15e9, 1152 * 4096, "arXiv 2402.16819, table 2"),
    _batch("BloombergGPT 50B", 50.6e9, 2048 * 2048, "arXiv 2303.17564, table 4"),
    _batch("LLaMA 65B", 65.2e9, 2048 * 2048, "arXiv 2302.13971, table 2"),
    _batch("OPT-175B", 175e9, 1024 * 2048, "arXiv 2205.01068, table 1"),
    _batch("BLOOM 176B", 176e9, 2048 * 2048, "arXiv 2211.05100, table 3"),
    _batch("Gopher 280B", 280e9, 3072 * 2048, "arXiv 2112.11446, appendix"),
    _batch("Llama 3 405B", 405e9, 2048 * 8192, "arXiv 2407.21783, section 3.4.1"),
    _batch("Megatron-Turing NLG 530B", 530e9, 1920 * 2048, "arXiv 2201.11990, section 2.4"),
    _batch("PaLM 540B", 540e9, 2048 * 2048, "arXiv 2204.02311, section 5"),
    _batch("Megatron 1T", 1008e9, 3072 * 2048, "arXiv 2104.04473, table 1"),
)
# Share beyond the range that is still usual. Source: papers print half a million for the 524,288 of 2^19.
ROUNDING = 0.1
# The most tokens of a batch of recent trainings of language models, and parameters from which models are meant.
# Source: Hugging Face, The Ultra-Scale Playbook: 4 to 60 million tokens; the smallest above with 4 million has 1.2e9.
MOST_RECENT_TOKENS, RECENT_PARAMETERS = 60e6, 1e9
RECENT = "recent trainings: Hugging Face, The Ultra-Scale Playbook"


def usual_batch_tokens(num_parameters: float) -> UsualBatch | None:
    """Return the range of the global batches of published models of about a size; None where none is alike."""
    alike = [one for one in PUBLISHED if 1 / ALIKE <= one.num_parameters / num_parameters <= ALIKE]
    if not alike:
        return None
    low = min(alike, key=lambda one: one.batch_tokens)
    high = max(alike, key=lambda one: one.batch_tokens)
    sources = [f"{low.name}: {low.source}", f"{high.name}: {high.source}"]
    if num_parameters < RECENT_PARAMETERS:
        return UsualBatch(low=low.batch_tokens, high=high.batch_tokens, sources="; ".join(dict.fromkeys(sources)))
    return UsualBatch(low=low.batch_tokens, high=MOST_RECENT_TOKENS, sources=f"{sources[0]}; {RECENT}")
