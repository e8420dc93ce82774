"""Which modules may make the gradient depend on how the samples are split."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

_SHOWN = 3  # modules named in the sentence; all of them are in the result
_BATCH_STATISTICS = "Batch statistics"
_BY_CLASS_NAME = (  # not base classes: these live in everybody's own code; "$", since whole models carry such names too
    (_BATCH_STATISTICS, re.compile(r"batch_?norm", re.IGNORECASE)),
    (
        "Balancing of experts",
        re.compile(r"(moe|moe_?(block|layer)|mixture_?of_?experts|experts|router)$", re.IGNORECASE),
    ),
    ("Losses within a batch", re.compile(r"contrastive|info_?nce|nt_?xent|clip_?loss|supcon", re.IGNORECASE)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCoupledModules:
    """What may explain a difference.

    Attributes:
        modules: As `name (class)`, the outermost of nested ones.
        sentence: The same for people, truncated; what else to look for where there are none.
    """

    modules: tuple[str, ...]
    sentence: str


def find_batch_coupled_modules(roots: Sequence[nn.Module]) -> BatchCoupledModules:
    """Name the modules in training mode whose class is known to couple the samples of a batch."""
    by_cause: dict[str, list[str]] = {}
    for root in roots:
        found: list[str] = []
        for name, module in root.named_modules():
            cause = _cause(module)
            if cause is not None and not any(name.startswith(f"{outer}.") for outer in found):
                found.append(name)
                by_cause.setdefault(cause, []).append(f"{name or 'the model'} ({type(module).__name__})")
    if not by_cause:
        return BatchCoupledModules(
            modules=(),
            sentence=(
                "No module is known to cause it: look for a loss that compares the samples of a batch, a mean weighted "
                "by padding, or a sum where a mean is meant."
            ),
        )
    sentence = "; ".join(f"{cause}: {_truncated(names)}" for cause, names in by_cause.items())
    return BatchCoupledModules(
        modules=tuple(name for names in by_cause.values() for name in names), sentence=f"{sentence}."
    )


def _cause(module: nn.Module) -> str | None:
    if not module.training:
        return None
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return _BATCH_STATISTICS
    name = type(module).__name__
    return next((cause for cause, pattern in _BY_CLASS_NAME if pattern.search(name)), None)


def _truncated(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
