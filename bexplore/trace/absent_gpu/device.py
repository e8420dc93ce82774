"""The absent device in PyTorch and Triton: the properties that a compiler reads while it plans."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from bexplore.trace.absent_gpu import GpuProperties
from bexplore.trace.absent_gpu.attention import route_attention

# Operators that have a kernel in the CUDA build, and fall apart where they have none. Source: native_functions.yaml of
# torch 2.13, operators with both a CUDA and a CompositeImplicitAutograd kernel.
_WITH_CUDA_KERNEL = ("silu_backward", "mish_backward", "_fused_rms_norm")


def _keep_operators() -> torch.library.Library:
    """Let operators stay whole that have a kernel in the CUDA build, as long as the registration lives."""
    registration = torch.library.Library("aten", "IMPL")
    for name in _WITH_CUDA_KERNEL:
        registration.impl(name, _compute_nothing, "CUDA")
    return registration


def _compute_nothing(*_arguments: Any) -> torch.Tensor:
    raise NotImplementedError("an absent device computes nothing")


def _do_nothing(*_arguments: Any) -> None:
    """Order no work: there is none. `fully_shard` gathers and reduces on streams of its own; which buffer is kept
    until when is decided by its code alone. Source: `FSDPCommContext` in torch/distributed/fsdp/_fully_shard/
    _fsdp_param_group.py.
    """


class Event:
    """A CUDA event that has always completed, with the options of `torch.cuda.Event`."""

    record = wait = synchronize = _do_nothing

    def __init__(self, **_options: Any) -> None:
        pass

    def query(self) -> bool:
        """Return that all work before it is done."""
        return True


class Stream:
    """A queue of work, which is always empty, with the options of `torch.cuda.Stream`."""

    wait_event = wait_stream = synchronize = _do_nothing

    def __init__(self, device: Any = None, priority: int = 0, **_options: Any) -> None:
        self.priority = priority

    def record_event(self, event: Event | None = None) -> Event:
        """Return an event of this stream."""
        return Event() if event is None else event

    def query(self) -> bool:
        """Return that all work is done."""
        return True


_current = [Stream()]


def current_stream(device: Any = None) -> Stream:
    """Return the stream on which work is put now."""
    return _current[-1]


@contextlib.contextmanager
def stream(stream: Stream | None) -> Iterator[None]:
    """Put work on a stream within; None changes nothing."""
    _current.append(stream or _current[-1])
    try:
        yield
    finally:
        _current.pop()


_registrations: list[object] = []  # end with the process


class AbsentDriver:
    """A driver of Triton with the target of its kernels; what needs the device itself is missing."""

    def __init__(self, capability: tuple[int, int]) -> None:
        self._target = GPUTarget("cuda", 10 * capability[0] + capability[1], 32)

    def get_current_target(self) -> GPUTarget:
        """Return the kind of device, its capability and the width of a warp."""
        return self._target

    def get_current_device(self) -> int:
        """Return the index of the only device."""
        return 0

    def get_device_interface(self) -> Any:
        """Return torch's interface of the device."""
        return torch.cuda


def install(properties: GpuProperties) -> None:
    """Put the absent device in place of the devices of this process, which has not imported the compiler yet."""
    _replace_torch_cuda(properties)
    driver.set_active(AbsentDriver(properties.capability))
    _registrations.extend([route_attention(properties.capability), _keep_operators()])
    from bexplore.trace import torch_private  # the compiler keeps what it finds at its import

    torch_private.never_open_a_device()
    torch_private.keep_layouts_of_convolutions()


def _replace_torch_cuda(properties: GpuProperties) -> None:
    known = types.SimpleNamespace(**properties.as_torch())
    replacements: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_properties": lambda device=None: known,
        "get_device_capability": lambda device=None: properties.capability,
        "get_device_name": lambda device=None: properties.name,
        "mem_get_info": lambda device=None: (known.total_memory, known.total_memory),
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "is_bf16_supported": lambda including_emulation=True: properties.capability >= (8, 0) or including_emulation,
        "get_rng_state": lambda device="cuda": torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda state, device="cuda": None,
        "_lazy_init": lambda: None,
        "is_current_stream_capturing": lambda: False,  # a CUDA build asks the device itself
        "Stream": Stream,
        "Event": Event,
        "stream": stream,
        "current_stream": current_stream,
        "_exchange_device": lambda index: 0,
        "_maybe_exchange_device": lambda index: 0,
    }
    for name, function in replacements.items():
        setattr(torch.cuda, name, function)
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
