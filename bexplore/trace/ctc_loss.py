"""The outputs of the CTC loss, whose sizes torch reads from the lengths of the targets: values that are not there."""

from __future__ import annotations

from typing import Any

import torch

from bexplore.trace.errors import TraceError

# Those of lengths in tensors; lengths in lists fail above, where torch fills a tensor with them that has no memory.
_FORWARD = torch.ops.aten._ctc_loss.Tensor
_BACKWARD = torch.ops.aten._ctc_loss_backward.Tensor


def is_ctc_loss(operator: Any) -> bool:
    """Return whether an operator is the CTC loss or its gradient."""
    return operator in (_FORWARD, _BACKWARD)


def ctc_outputs(operator: Any, arguments: Any) -> tuple[Any, Any]:
    """Return the operator's fake outputs, and what it allocates for itself meanwhile (None for nothing).

    The widest table that the targets allow is assumed: padded targets `(batch, longest)` bound their lengths.
    Source: `ctc_loss_cpu_template` and `ctc_loss_backward_cpu_template` in torch's `native/LossCTC.cpp`, and the same
    sizes in `native/cuda/LossCTC.cu`.

    Raises:
        TraceError: The targets stand one behind the other, so that only their values tell the longest.
    """
    if operator == _BACKWARD:
        log_probs, log_alpha = arguments[1], arguments[6]
        return torch.empty_like(log_probs), torch.empty_like(log_alpha)
    log_probs, targets = arguments[:2]
    if targets.dim() != 2:
        raise TraceError(
            "The CTC loss of targets one behind the other takes as much memory as the longest of them asks for.",
            hint="Pad the targets to (batch, longest).",
        )
    longest = targets.size(1)
    num_steps, batch = log_probs.shape[:2]
    return (log_probs.new_empty((batch,)), log_probs.new_empty((batch, num_steps, 2 * longest + 1))), None
