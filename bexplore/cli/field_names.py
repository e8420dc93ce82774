"""The one table from fields of the Python interface, which messages name, to options of the command line."""

from __future__ import annotations

import re

# A field, one value of it, or a function -> what the command line has instead. Another value stands behind the option.
OPTIONS = {
    "allow_code=False": "--no-code",
    "allow_code=True": "leave out --no-code",
    "against": "--against",
    "also": "--also",
    "baseline_path": "--baseline",
    "device_name": "--device-name",
    "figures": "--figures",
    "fresh=True": "--fresh",
    "micro_batch_size=N": "--micro-batch-size N",
    "model_dir": "--model-dir",
    "python": "--python",
    "replicas": "--replicas",
    "run": "--run",
    "trace_path": "--profile",
    "update_baseline": "--update",
    "writes_are_fine=True": "--writes-are-fine",
}
_FIELD = re.compile(r"`((\w+)(?:=([^`\n]+))?)`")


def name_options(text: str) -> str:
    """Return a message with an option in place of each field: `replicas=2` in backticks becomes --replicas 2."""

    def name(match: re.Match[str]) -> str:
        whole, field, value = match.groups()
        if whole in OPTIONS:
            return OPTIONS[whole]
        if field not in OPTIONS:
            return match[0]
        return f"{OPTIONS[field]} {value}" if value else OPTIONS[field]

    return _FIELD.sub(name, text)
