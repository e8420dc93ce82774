"""The protocol of the user's own training step, which `explore.workload.step` names."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

MODULES = "modules: a torch.nn.Module, or an iterable or mapping of them"


class TrainingStep(Protocol):
    """A training step with several losses, frozen parts or several optimizers.

    `explore.workload.step` names a class or function, `module:name`, that returns such an object; it gets those of
    `explore.workload.arguments` that its signature names. It is called under `torch.device` of the job, after torch was
    seeded. A class need not inherit from this one. `bexplore init --example own_step` writes an example.

    An optimizer step calls `forward_backward` once for each accumulation step, each with a batch of `micro_batch_size`
    samples, and then `update` once. The step itself has precision, clipping and the weights of the losses. On several
    ranks (`explore.parallelism`) what makes it is given `mesh`, a `torch.distributed.device_mesh.DeviceMesh` with
    torchtitan's names of dimensions, and shares the work itself.

    Two more members are optional:

    * `optimizers`: a `torch.optim.Optimizer`, or an iterable or mapping of those that `update` steps; without it those
      among the attributes. The names of their classes and the memory of their states are reported.
    * `evaluate(self, batch) -> torch.Tensor`: the loss without gradients, scalar. An evaluation job runs it, and needs
      neither `forward_backward` nor `update`.

    Attributes:
        modules: What is moved to the device, and compiled in place (`nn.Module.compile`) before the first pass; frozen
            ones too.
    """

    modules: torch.nn.Module | Iterable[torch.nn.Module] | Mapping[str, torch.nn.Module]

    def make_batch(self, micro_batch_size: int) -> Any:
        """Make a batch of a number of samples.

        Args:
            micro_batch_size: Samples of one replica in one pass.

        Returns:
            A pytree of tensors (a tensor, or mappings, tuples and lists of them), which are moved to the device. Each
            has a dimension of `micro_batch_size`; where none has, `explore.workload.samples_of` counts the samples.
        """

    def forward_backward(self, batch: Any) -> torch.Tensor:
        """Run one forward and backward pass.

        It calls `backward()`, which adds to `.grad`, and does not clear gradients. It may also take
        `loss_scale: float = 1.0`, by which it multiplies what it calls `backward()` on, and, on several ranks,
        `synchronize: bool = True`: whether this pass reduces the gradients over the replicas.

        Args:
            batch: As `make_batch` gave it, on the device.

        Returns:
            The loss, scalar, of several their sum.
        """

    def update(self) -> None:
        """Clip, step the optimizers and clear the gradients."""


class EvaluationStep(Protocol):
    """The members of a `TrainingStep` that an evaluation job needs."""

    modules: torch.nn.Module | Iterable[torch.nn.Module] | Mapping[str, torch.nn.Module]

    def make_batch(self, micro_batch_size: int) -> Any:
        """Make a batch, as in `TrainingStep`."""

    def evaluate(self, batch: Any) -> torch.Tensor:
        """Run a forward pass, for which gradients are switched off, and return the loss, scalar."""


def methods(*, is_training: bool) -> dict[str, str]:
    """Return the methods that a step must have, as one would write their first line."""
    protocol = TrainingStep if is_training else EvaluationStep
    found = {name: member for name, member in vars(protocol).items() if inspect.isfunction(member)}
    return {
        name: f"def {name}{inspect.signature(member)}".replace("'", "")
        for name, member in found.items()
        if not name.startswith("_")
    }
