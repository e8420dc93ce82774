"""The machine on which a benchmark ran, as its records have it."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from typing import Any

from bexplore.host.machine import package_version, processor_name


def machine_facts() -> dict[str, Any]:
    """Return processor, versions and time."""
    return {
        "processor": processor_name(),
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "torch": package_version("torch"),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
