"""What a step of the user's own keeps from one step to the next."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

from bexplore.workloads.lasting import fill_histories, find_lasting


def test_the_tensors_of_a_step_are_found_wherever_it_holds_them():
    held = {"queue": torch.ones(1), "deep": torch.ones(2), "late": torch.ones(3), "unregistered": torch.ones(4)}
    model = nn.Linear(1, 1)
    model.mask = held["unregistered"]
    step = SimpleNamespace(
        queue=[held["queue"]],
        helper=SimpleNamespace(average={"a": (held["deep"],)}),
        model=nn.Sequential(nn.Sequential(model)),
        functions=torch.nn.functional,
    )
    step.helper.step = step
    step.late = held["late"]
    found = list(find_lasting(step))

    names = {name: sum(one is tensor for _, one in found) for name, tensor in held.items()}
    assert names == {name: 1 for name in held}
    assert {name for name, _ in found} == {"queue", "helper", "model", "late"}


def test_a_filled_history_changes_no_step_of_lbfgs():
    (alone, few), (filled, all_of_them) = _fit(is_filled=False), _fit(is_filled=True)
    assert torch.equal(alone, filled)
    assert few < all_of_them == 9


def _fit(*, is_filled: bool) -> tuple[torch.Tensor, int]:
    weight, target = nn.Parameter(torch.linspace(-1.0, 1.0, 8)), torch.arange(8.0)
    optimizer = torch.optim.LBFGS([weight], lr=0.1, max_iter=2, history_size=9)
    if is_filled:
        fill_histories([optimizer])

    def evaluate() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (weight.exp() - target).square().sum()
        loss.backward()
        return loss

    for _ in range(4):
        optimizer.step(evaluate)
    return weight.detach(), len(next(iter(optimizer.state.values()))["old_dirs"])
