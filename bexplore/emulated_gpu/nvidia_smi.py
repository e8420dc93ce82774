"""What `nvidia-smi` prints, of emulated devices: programs ask it for the name and the memory before they train.

It runs as a script in an interpreter of its own, and asks the emulated NVML, which is loaded before it. Source of the
fields and the formats: `nvidia-smi --help-query-gpu`.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import zip_longest

_NO_VALUE = "[N/A]"
_UNITS = {"memory": "MiB", "utilization": "%", "power": "W", "clocks": "MHz"}
_ALIASES = {"gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id"}


class _Device:
    def __init__(self, nvml: ctypes.CDLL, number: int) -> None:
        self._nvml, self.number, self._handle = nvml, number, ctypes.c_void_p()
        nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(self._handle))

    def read_text(self, what: str) -> str:
        text = ctypes.create_string_buffer(96)
        getattr(self._nvml, f"nvmlDeviceGet{what}")(self._handle, text, len(text))
        return text.value.decode()

    def read_numbers(self, what: str, kind: type[ctypes._SimpleCData[int]], count: int) -> list[int]:
        found = (kind * count)()
        getattr(self._nvml, f"nvmlDeviceGet{what}")(self._handle, found)
        return list(found)

    def find(self, field: str) -> str:
        """Return the value of a field without its unit."""
        total, free, used = (size >> 20 for size in self.read_numbers("MemoryInfo", ctypes.c_ulonglong, 3))
        busy = self.read_numbers("UtilizationRates", ctypes.c_uint, 2)
        values: dict[str, Callable[[], str]] = {
            "name": lambda: self.read_text("Name"),
            "uuid": lambda: self.read_text("UUID"),
            "index": lambda: str(self.number),
            "count": lambda: str(count_devices(self._nvml)),
            "memory.total": lambda: str(total),
            "memory.free": lambda: str(free),
            "memory.used": lambda: str(used),
            "utilization.gpu": lambda: str(busy[0]),
            "utilization.memory": lambda: str(busy[1]),
            "driver_version": lambda: "emulated",
            "timestamp": lambda: f"{datetime.now():%Y/%m/%d %H:%M:%S}.000",
            "temperature.gpu": lambda: str(self.read_numbers("Temperature", ctypes.c_uint, 1)[0]),
        }
        return values[field]() if field in values else _NO_VALUE


def count_devices(nvml: ctypes.CDLL) -> int:
    """Return the number of devices."""
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    return count.value


def print_query(devices: Sequence[_Device], fields: Sequence[str], form: Sequence[str]) -> None:
    """Print a line of values for each device, as `--query-gpu` does."""
    fields = [_ALIASES.get(field, field) for field in fields]
    units = [next((unit for name, unit in _UNITS.items() if name in field), "") for field in fields]
    is_bare = "nounits" in form
    if "noheader" not in form:
        print(", ".join(f"{field} [{unit}]" if unit else field for field, unit in zip(fields, units, strict=True)))
    for device in devices:
        values = [device.find(field) for field in fields]
        pairs = zip(values, units, strict=True)
        print(
            ", ".join(
                value if is_bare or not unit or value == _NO_VALUE else f"{value} {unit}" for value, unit in pairs
            )
        )


def main(words: Sequence[str]) -> None:
    """Print what the options ask for."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    nvml.nvmlInit_v2()
    options: dict[str, str] = {}
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        name, has_value, value = word.partition("=")
        options[name] = value if has_value else following
    chosen = options.get("-i", options.get("--id", ""))
    devices = [_Device(nvml, number) for number in range(count_devices(nvml))]
    devices = [one for one in devices if not chosen or {str(one.number), one.find("uuid")} & {*chosen.split(",")}]
    if "-L" in options or "--list-gpus" in options:
        for one in devices:
            print(f"GPU {one.number}: {one.find('name')} (UUID: {one.find('uuid')})")
    elif "--query-gpu" in options:
        print_query(devices, options["--query-gpu"].replace(" ", "").split(","), options.get("--format", "").split(","))
    elif "topo" in options:
        print("\t".join(["", *(f"GPU{one.number}" for one in devices), "CPU Affinity", "NUMA Affinity"]))
        for one in devices:
            print("\t".join([f"GPU{one.number}", *("X" if one is other else "NV18" for other in devices), "0", "0"]))
    elif not any(name.startswith("--query") for name in options):
        print("NVIDIA-SMI emulated    Driver Version: emulated")
        for one in devices:
            print(
                f"| {one.number}  {one.find('name')} | {one.find('memory.used')}MiB / {one.find('memory.total')}MiB |"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
