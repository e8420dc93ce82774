"""Does a step of the user's own train? Whether it leaves gradients, and whether they depend on the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bexplore.engine.worker.deterministic import deterministic, restored
from bexplore.errors import UserInputError
from bexplore.host.emulation import is_emulated
from bexplore.workloads import Batch, Workload
from bexplore.workloads.batches import tensor_leaves

FEWEST_SAMPLES = 4  # of a size whose half shows more than whether there are gradients
_MOST_SAMPLES = 4  # of a batch: bounds the time; even, since some models pair their samples
_OTHER_BATCHES = 16  # until the step is refused: few samples may violate a margin. A judgement, no measurement


def check_step(workload: Workload, parameters: Sequence[torch.nn.Parameter], micro_batch_size: int) -> bool:
    """Check that a training step leaves gradients, and that they depend on the batch, without the compiler.

    A single sample shows only whether there are gradients: a loss that compares the samples of a batch is then the
    same whatever it is.

    Args:
        workload: A training job with code of the user's own; its parameters may be updated.
        parameters: All that it has, without gradients; where none is known nothing is checked.
        micro_batch_size: A size that was run, samples; at most half of it is taken, since without the compiler a pass
            needs more memory.

    Returns:
        Whether all was checked.

    Raises:
        UserInputError: No parameter has a gradient, and none changes without one; or all gradients are zero; or
            different batches give the same loss and the same gradients, to the last bit.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if is_emulated():  # every gradient is zero there
        return True
    num_samples = next((size for size in (_MOST_SAMPLES, 2) if 2 * size <= micro_batch_size), 1)
    with restored(workload.compiled_modules), deterministic(workload.compiled_modules):
        batch = workload.make_batch(num_samples)
        first = _run(workload, trained, batch)
        if trained and all(norm is None for norm in first.norms):
            _require_changes(workload, trained, batch)
        elif trained and num_samples > 1:
            _require_dependence(workload, trained, batch, first, num_samples)
    return num_samples > 1


@dataclass(frozen=True, slots=True)
class _Pass:
    """The loss, and of each gradient its norm; None for none. Two are equal only to the last bit."""

    loss: float
    norms: tuple[float | None, ...]


def _run(workload: Workload, trained: Sequence[torch.nn.Parameter], batch: Batch) -> _Pass:
    for parameter in trained:
        parameter.grad = None
    loss = workload.forward_backward(batch)
    gradients = [parameter.grad for parameter in trained]
    return _Pass(float(loss), tuple(None if gradient is None else _norm(gradient) for gradient in gradients))


def _norm(gradient: torch.Tensor) -> float:
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return float(torch.linalg.vector_norm(values, dtype=torch.float32))


def _require_changes(workload: Workload, trained: Sequence[torch.nn.Parameter], batch: Batch) -> None:
    """Raise unless a step changes parameters without `.grad`: in hooks of its passes, or by gradients of its own."""
    before = [float(parameter.detach().sum(dtype=torch.float32)) for parameter in trained]
    workload.forward_backward(batch)
    workload.update()
    if before == [float(parameter.detach().sum(dtype=torch.float32)) for parameter in trained]:
        raise UserInputError(
            "After a pass no parameter has a gradient, and an update changes none: the step trains nothing.",
            hint="Call loss.backward() in forward_backward, and give the trained parameters requires_grad.",
        )


def _require_dependence(
    workload: Workload, trained: Sequence[torch.nn.Parameter], batch: Batch, first: _Pass, num_samples: int
) -> None:
    """Raise unless one of some batches has a gradient that is not zero and differs from the first one's."""
    is_zero = not any(first.norms)
    for number in range(1, 1 + _OTHER_BATCHES):
        assert workload.make_other_batch is not None
        other = workload.make_other_batch(num_samples, number)
        if _are_equal(batch, other):
            return
        found = _run(workload, trained, other)
        if any(found.norms) and found != first:
            return
        is_zero = is_zero and not any(found.norms)
    raise _zero_gradients(num_samples) if is_zero else _independent_of_batch(first.loss, num_samples)


def _are_equal(batch: Batch, other: Batch) -> bool:
    """Return whether the tensors of two batches are the same: data that is not random, from which nothing follows."""
    ours, theirs = tensor_leaves(batch), tensor_leaves(other)
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


def _zero_gradients(num_samples: int) -> UserInputError:
    return UserInputError(
        f"All gradients are zero, of {1 + _OTHER_BATCHES} batches of {num_samples} samples: the step trains nothing.",
        hint="See whether the loss is detached from the parameters, or multiplied by zero.",
    )


def _independent_of_batch(loss: float, num_samples: int) -> UserInputError:
    return UserInputError(
        f"{1 + _OTHER_BATCHES} different batches of {num_samples} samples give the same loss, {loss:.9g}, and the same "
        "gradients: the step does not depend on its batch.",
        hint="Compute the loss from the batch that the step is given.",
    )
