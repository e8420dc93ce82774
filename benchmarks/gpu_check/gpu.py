"""The GPU seen from outside the process that is looked at: free memory, and what the driver's tool prints."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from typing import Any

SAMPLE_EVERY_S = 0.01


class TakenMemory:
    """Samples the GPU's free memory while other processes work: `taken_bytes` is the most that they held at once.

    None where there is no GPU. This process has a context before the first sample, so that its own does not count.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._free_before = self._least_free = 0

    def _free_bytes(self) -> int:
        import torch

        return int(torch.cuda.mem_get_info(self._device)[0])

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_EVERY_S):
            self._least_free = min(self._least_free, self._free_bytes())

    @property
    def taken_bytes(self) -> int | None:
        return None if self._device == "cpu" else self._free_before - self._least_free

    def __enter__(self) -> TakenMemory:
        if self._device != "cpu":
            self._free_before = self._least_free = self._free_bytes()
            self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()


def nvidia_smi(*arguments: str) -> dict[str, Any]:
    """What `nvidia-smi` prints: exit code, stdout, stderr; as it is, since tests read it later."""
    return printed(["nvidia-smi", *arguments])


def printed(command: Sequence[str]) -> dict[str, Any]:
    """What a short command prints."""
    try:
        done = subprocess.run(command, text=True, capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return {"command": list(command), "error": f"{type(error).__name__}: {error}"}
    return {"command": list(command), "code": done.returncode, "stdout": done.stdout, "stderr": done.stderr[-500:]}
