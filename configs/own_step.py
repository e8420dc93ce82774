"""What `own_step.yaml` names: a generator and a critic that train against each other, in front of a frozen encoder.

`help(bexplore.TrainingStep)` has the protocol. Nothing is imported from bexplore, and nothing is inherited.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

NOISE = 16  # values that a sample is generated from
PIXELS = 256


class AdversarialStep:
    """Two losses, two optimizers, and a part that is not trained."""

    def __init__(self, width: int) -> None:
        """Make the modules and their optimizers; `width` comes from `arguments` in the YAML."""
        self.encoder = nn.Linear(PIXELS, width).requires_grad_(False)
        self.generator = nn.Sequential(nn.Linear(NOISE, width), nn.ReLU(), nn.Linear(width, PIXELS))
        self.critic = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
        # Moved to the device, and compiled in place before the first pass.
        self.modules = {"encoder": self.encoder, "generator": self.generator, "critic": self.critic}
        # Optional: whose states take memory, and what they are called.
        self.optimizers = [
            torch.optim.Adam(self.generator.parameters(), lr=2e-4),
            torch.optim.SGD(self.critic.parameters(), lr=1e-2, momentum=0.9),
        ]

    def make_batch(self, micro_batch_size: int) -> dict[str, torch.Tensor]:
        """Noise and real samples; torch is seeded before each call, and the tensors are moved to the device."""
        return {"noise": torch.randn(micro_batch_size, NOISE), "real": torch.rand(micro_batch_size, PIXELS)}

    def forward_backward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """One pass: both losses add to the gradients of their own part, and their sum is returned."""
        made = self.generator(batch["noise"])
        deception = F.softplus(-self.critic(self.encoder(made))).mean()
        deception.backward(inputs=list(self.generator.parameters()))
        on_real, on_made = self.critic(self.encoder(batch["real"])), self.critic(self.encoder(made.detach()))
        judgement = F.softplus(-on_real).mean() + F.softplus(on_made).mean()
        judgement.backward()
        return (deception + judgement).detach()

    def update(self) -> None:
        """After the last pass of a step: clip, step both optimizers, and clear the gradients."""
        nn.utils.clip_grad_norm_(self.generator.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
