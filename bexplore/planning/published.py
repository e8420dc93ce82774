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


def _batch(name: str, num_parameters: float, batch_tokens: float, source: str) -> PublishedBatch:
    return PublishedBatch(name=name, num_parameters=num_parameters, batch_tokens=batch_tokens, source=source)


PUBLISHED: tuple[PublishedBatch, ...] = (
    _batch("GPT-3 125M", 125e6, 0.5e6, "arXiv 2005.14165, table 2.1"),
    _batch("GPT-3 350M", 350e6, 0.5e6, "arXiv 2005.14165, table 2.1"),
    _batch("GPT-3 760M", 760e6, 0.5e6, "arXiv 2005.14165, table 2.1"),
    _batch("GPT-3 1.3B", 1.3e9, 1e6, "arXiv 2005.14165, table 2.1"),
    _batch("GPT-3 2.7B", 2.7e9, 1e6, "arXiv 2005.14165, table 2.1"),
    _batch("GPT-3 6.7B", 6.7e9, 2e6, "arXiv 2005.14165, table 2.1"),
    _batch("GPT-3 13B", 13e9, 2e6, "arXiv 2005.14165, table 2.1"),
    _batch("GPT-3 175B", 175e9, 3.2e6, "arXiv 2005.14165, table 2.1"),
    _batch("Pythia 70M", 70e6, 2097152, "arXiv 2304.01373, section 2"),
    _batch("Pythia 410M", 410e6, 2097152, "arXiv 2304.01373, section 2"),
    _batch("Pythia 12B", 12e9, 2097152, "arXiv 2304.01373, section 2"),
    _batch("LLaMA 7B", 6.7e9, 4e6, "arXiv 2302.13971, table 2"),
    _batch("LLaMA 65B", 65.2e9, 4e6, "arXiv 2302.13971, table 2"),
    _batch("Llama 3 405B", 405e9, 16e6, "arXiv 2407.21783, section 3.4.1"),
    _batch("PaLM 540B", 540e9, 4e6, "arXiv 2204.02311, section 5"),
)


def usual_batch_tokens(num_parameters: float) -> UsualBatch | None:
    """Return the range of the global batches of published models of about a size; None where none is alike."""
    alike = [one for one in PUBLISHED if 1 / ALIKE <= one.num_parameters / num_parameters <= ALIKE]
    if not alike:
        return None
    low = min(alike, key=lambda one: one.batch_tokens)
    high = max(alike, key=lambda one: one.batch_tokens)
    ends = dict.fromkeys((low, high))
    return UsualBatch(
        low=low.batch_tokens,
        high=high.batch_tokens,
        sources="; ".join(f"{one.name}: {one.source}" for one in ends),
    )
