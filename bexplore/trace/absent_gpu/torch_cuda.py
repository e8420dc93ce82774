"""What `torch.cuda` answers for the absent device: the questions that the compiler asks while it plans."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch._subclasses import fake_tensor

from bexplore.trace.gpu_properties import GpuProperties


def answer_for(properties: GpuProperties) -> None:
    """Replace the functions of `torch.cuda` that look for a device.

    The compiler keeps what it finds at its own import, so this comes before it.
    """
    known = types.SimpleNamespace(**properties.as_torch())
    answers: dict[str, Any] = {
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
        "_exchange_device": lambda index: 0,
        "_maybe_exchange_device": lambda index: 0,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    # Fake tensors make a context on a device that there is, and move constants to it: there is none to do either.
    setattr(fake_tensor, "init_gpu_context", lambda device: None)  # noqa: B010  # typed as a cached function
    setattr(fake_tensor.FakeTensorMode, "avoid_device_init", True)  # noqa: B010  # a property of the class
