"""Stand-ins for what the observer sees of a training: fake_torch, tensors, loaders and optimizers, as plain objects."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bexplore.command.observer.bexplore_observer.steps import Observer


class Tensor:
    def __init__(self, *shape: int, device: str = "cpu") -> None:
        self.shape, self.layout, self.device = shape, "strided", SimpleNamespace(type=device)
        self.requires_grad = True

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        count = 1
        for length in self.shape:
            count *= length
        return count

    def is_floating_point(self) -> bool:
        return True

    def detach(self) -> Tensor:
        return self

    def reshape(self, *_shape: int) -> Values:
        return Values(range(self.numel()))


class Values(list):
    def numel(self) -> int:
        return len(self)

    def tolist(self) -> list:
        return list(self)

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return Values(found) if isinstance(index, slice) else found


class Module:
    """A model without parts."""

    training = True

    def __init__(self) -> None:
        self.hooks: list[Any] = []

    def parameters(self) -> list[Tensor]:
        return [Tensor(2)]

    def modules(self) -> list[Module]:
        return [self]

    def children(self) -> list[Module]:
        return []

    def register_forward_pre_hook(self, hook: Any, *, with_kwargs: bool) -> Any:
        assert with_kwargs
        self.hooks.append(hook)
        return SimpleNamespace(remove=lambda: self.hooks.remove(hook) if hook in self.hooks else None)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        for hook in list(self.hooks):
            hook(self, args, kwargs)


class Optimizer:
    def __init__(self, numel: int = 8) -> None:
        self.param_groups = [{"params": [Tensor(numel)]}]

    def load_state_dict(self, state_dict: dict) -> None:
        pass


@pytest.fixture
def fake_torch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A torch without an accelerator, as far as the observer asks it."""
    # Other tests of this process may have compiled: the real compiler's counters are not of this torch.
    monkeypatch.delitem(sys.modules, "torch._dynamo.convert_frame", raising=False)

    class Own(Module):  # what the garbage collector finds of other tests is not of this one
        pass

    class OwnNormalization(Own):
        pass

    class DataParallel(Own):
        def __init__(self, device_ids: list[int]) -> None:
            super().__init__()
            self.device_ids = device_ids

    class Parameter(Tensor):
        pass

    return SimpleNamespace(
        __version__="2.13",
        Tensor=Tensor,
        strided="strided",
        compiler=SimpleNamespace(is_compiling=lambda: False),
        cuda=SimpleNamespace(is_initialized=lambda: False),
        distributed=SimpleNamespace(is_available=lambda: False),
        autograd=SimpleNamespace(_profiler_enabled=lambda: False),
        is_grad_enabled=lambda: True,
        get_num_threads=lambda: 1,
        nn=SimpleNamespace(
            Module=Own,
            DataParallel=DataParallel,
            Parameter=Parameter,
            modules=SimpleNamespace(batchnorm=SimpleNamespace(_BatchNorm=OwnNormalization)),
        ),
    )


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    """The settings of a probe that never ends by itself; its reports have the files that the explorer makes."""
    reports = tmp_path / "reports"
    reports.mkdir()
    for name in ("last_step", "release", "next"):
        (reports / name).touch()
    return {"micro_batch_size": 4, "max_steps": 1000, "memory_step": 999, "reports": str(reports)}


@pytest.fixture
def observe(tmp_path: Path, fake_torch: SimpleNamespace, settings: dict[str, Any]):
    """Return a function that makes the observer of a probe with these settings beside the usual ones."""

    def make(**more: Any) -> Observer:
        (tmp_path / "probe.json").write_text(json.dumps(settings | more))
        return Observer(str(tmp_path), fake_torch)

    return make


@pytest.fixture
def train():
    """Return a function that runs passes and an update of each optimizer under an observer."""

    def step(observer: Observer, *optimizers: Optimizer, num_passes: int = 1) -> None:
        for _ in range(num_passes):
            observer.before_backward()
            observer.after_backward()
        for optimizer in optimizers:
            observer.before_update(optimizer, (), {})
            observer.after_update(optimizer, (), {})

    return step


@pytest.fixture
def tensor():
    """Return the class of tensors."""
    return Tensor


@pytest.fixture
def optimizer():
    """Return the class of optimizers."""
    return Optimizer


@pytest.fixture
def read_record(settings: dict[str, Any]):
    """Return a function that reads the record of the rank."""

    def read() -> dict[str, Any]:
        (path,) = Path(settings["reports"]).glob("rank-*.json")
        return json.loads(path.read_text())

    return read
