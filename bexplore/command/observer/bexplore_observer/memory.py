"""The memory of one untimed step, and the accelerator that this rank runs on."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from typing import Any

from .objects import find_objects

Note = Callable[[str, Any], None]  # takes a place and an exception or a text


class Device:
    """The accelerator of this rank, which is known at its first pass."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.reset()

    def reset(self) -> None:
        """Forget the device; after a fork it was the parent's."""
        self.is_used = False
        self._index: int | None = None

    def find_index(self) -> int:
        """Return the index of the device with the most tensors: a script need not make its device the current one."""
        cuda = self._torch.cuda
        if self._index is None:
            held = [cuda.memory_allocated(index) for index in range(cuda.device_count())]
            if not any(held):
                return int(cuda.current_device())
            self._index = held.index(max(held))
        return self._index

    def begin(self, limit_bytes: int | None) -> None:
        """Note at the first pass whether there is one, and limit its memory; until then a rank has all of it."""
        cuda = self._torch.cuda
        self.is_used = bool(cuda.is_initialized())
        if limit_bytes and self.is_used:
            index = self.find_index()
            total = cuda.get_device_properties(index).total_memory
            cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total), index)

    def mark(self) -> Any:
        """Return an event of the device's queue; None while that is being captured."""
        cuda = self._torch.cuda
        if cuda.is_current_stream_capturing():
            return None
        event = cuda.Event(enable_timing=True)
        event.record(cuda.current_stream(self.find_index()))
        return event

    def read_times(self, steps: list[dict[str, Any]], marks_of_steps: list[list[tuple[str, Any]]]) -> None:
        """Replace host times by device times: the host queues steps before the device has run them."""
        self._torch.cuda.synchronize(self.find_index())
        events = [event for marks in marks_of_steps for _, event in marks]
        for step, marks in zip(steps, marks_of_steps):
            begins = [event for kind, event in marks if kind == "begins"]
            ends = [event for kind, event in marks if kind == "ends"]
            if not ends:  # updated inside of the backward pass
                continue
            step["ended_s"] = events[0].elapsed_time(ends[-1]) / 1e3
            step["update_s"] = sum(a.elapsed_time(b) for a, b in zip(begins, ends)) / 1e3

    def count_refusals(self) -> int:
        """Return how often the allocator refused memory so far."""
        cuda = self._torch.cuda
        return cuda.memory_stats(self.find_index()).get("num_ooms", 0) if cuda.is_initialized() else 0

    def read_memory(self) -> dict[str, int]:
        """Return the peaks and counts of the allocator."""
        cuda, index = self._torch.cuda, self.find_index()
        statistics = cuda.memory_stats(index)
        return {
            "peak_bytes": cuda.max_memory_allocated(index),
            "reserved_peak_bytes": cuda.max_memory_reserved(index),
            "num_ooms": statistics.get("num_ooms", 0),
            "num_alloc_retries": statistics.get("num_alloc_retries", 0),
        }


class MemoryStep:
    """The step whose memory is measured; it is not timed."""

    def __init__(self, torch: Any, device: Device, note: Note) -> None:
        self._torch, self._device, self._note = torch, device, note
        self.reset()

    def reset(self) -> None:
        """Forget what was measured of a probe."""
        self.measured: dict[str, int | None] = {}
        self._profiler: Any = None
        # Resident bytes of this process: their peak in the step, and what the profiler has left behind.
        self._resident_peak_bytes = self._left_bytes = 0

    def begin(self, *, profiles: bool) -> None:
        """Begin the step; without a device, a profiler may follow the tensors in the host's memory."""
        self.measured["resident_before_bytes"] = read_status_bytes("VmRSS")
        self._begin_resident_peak()
        if self._torch.cuda.is_initialized():
            index = self._device.find_index()
            self._torch.cuda.reset_peak_memory_stats(index)
            self.measured["num_ooms_before"] = self._torch.cuda.memory_stats(index).get("num_ooms", 0)
        elif profiles and not self._torch.autograd._profiler_enabled():
            self.measured["live_bytes"] = count_live_bytes(self._torch)
            self._begin_profile()

    def _begin_resident_peak(self) -> bool:
        try:
            with open("/proc/self/clear_refs", "w") as stream:
                stream.write("5")  # VmHWM starts anew
        except OSError:
            self._note("memory", "the resident peak is that of the whole process")
            return False
        return True

    def read_resident_peak(self) -> int | None:
        """Return the peak of the resident bytes since the step began, without the profiler's; None if unknown."""
        peak_bytes = read_status_bytes("VmHWM")
        return None if peak_bytes is None else max(self._resident_peak_bytes, peak_bytes - self._left_bytes)

    def _begin_profile(self) -> None:
        try:
            profiler = self._torch.profiler
            self._profiler = profiler.profile(activities=[profiler.ProfilerActivity.CPU], profile_memory=True)
            self._profiler.__enter__()
        except Exception as error:
            self._profiler = None
            self._note("profile", error)

    def end(self) -> None:
        """End the step, if it has begun."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        # What it recorded takes gigabytes where a step has very many operators.
        peak_bytes, before_bytes = read_status_bytes("VmHWM"), read_status_bytes("VmRSS")
        self._read_profile(profiler)
        del profiler
        if peak_bytes is not None and before_bytes is not None and self._begin_resident_peak():
            self._resident_peak_bytes = peak_bytes
            self._left_bytes = max(0, (read_status_bytes("VmRSS") or 0) - before_bytes)

    def _read_profile(self, profiler: Any) -> None:
        try:
            profiler.__exit__(None, None, None)
            events = [one for one in profiler.profiler.kineto_results.events() if one.name() == "[memory]"]
            bytes_now = peak = 0
            for event in sorted(events, key=lambda one: one.start_ns()):
                bytes_now += event.nbytes()
                peak = max(peak, bytes_now)
            self.measured["peak_bytes"] = (self.measured["live_bytes"] or 0) + peak
        except Exception as error:
            self._note("profile", error)


class HostMemoryLimit:
    """Limits the memory of this process beyond what it had when torch was imported, where that has no accelerator."""

    def __init__(self, torch: Any) -> None:
        self._torch, self._before_bytes = torch, read_status_bytes("VmData") or 0

    def apply(self, settings: Mapping[str, Any]) -> None:
        """Limit it, where the settings of a probe say so."""
        self._limit(settings, self._before_bytes + (settings.get("memory_limit_bytes") or 0))

    def lift(self, settings: Mapping[str, Any]) -> None:
        """Lift it: what is written of a probe needs memory, too."""
        self._limit(settings, None)

    def _limit(self, settings: Mapping[str, Any], data_bytes: int | None) -> None:
        if settings.get("memory_limit_bytes") and not is_emulated() and not _has_accelerator(self._torch):
            import resource

            unlimited = resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_DATA, (data_bytes or unlimited, unlimited))


def _has_accelerator(torch: Any) -> bool:
    """Return whether torch can use a device of this host: NVIDIA's, also under WSL, or AMD's."""
    paths = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
    return bool(torch.backends.cuda.is_built()) and any(os.path.exists(path) for path in paths)


def is_emulated() -> bool:
    """Return whether the devices of this process are emulated."""
    return bool(getattr(ctypes.CDLL(None), "bexplore_is_emulated", int)())


def count_live_bytes(torch: Any) -> int:
    """Return the bytes of all storages that Python can see: weights, gradients, optimizer states, batches."""
    import warnings

    storages: dict[int, int] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one in find_objects(torch.Tensor):
            try:
                for tensor in (one,) if one.grad is None else (one, one.grad):
                    storage = tensor.untyped_storage()
                    if storage.device.type == "cpu":
                        storages[storage.data_ptr()] = storage.nbytes()
            except Exception:  # a tensor without storage, or one that is being freed: it is left out
                continue
    return sum(storages.values())


def read_status_bytes(key: str) -> int | None:
    """Return a size that the kernel tells of this process, such as VmRSS; None where it does not."""
    try:
        with open("/proc/self/status") as stream:
            for line in stream:
                if line.startswith(f"{key}:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
