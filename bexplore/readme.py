"""The parts of README.md that come from the code: `python -m bexplore.readme README.md` writes them in place."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from bexplore.config import json_schema


def settings_table() -> str:
    """Every key of the `explore:` section with its default and what it means, as a Markdown table."""
    schema = json_schema()
    rows = ["| key | default | meaning |", "|---|---|---|"]
    rows += _rows("", schema["properties"]["explore"]["properties"], schema["$defs"])
    return "\n".join(rows)


def _rows(prefix: str, properties: dict[str, Any], definitions: dict[str, Any]) -> list[str]:
    rows = []
    for name, field in properties.items():
        default = _shown(field["default"]) if "default" in field else ""
        rows.append(f"| `{prefix}{name}` | {default} | {field.get('description', '').replace('|', ', ')} |")
        inner = _section(field, definitions)
        if inner is not None:
            rows += _rows(f"{prefix}{name}.", inner["properties"], definitions)
    return rows


def _section(field: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any] | None:
    """The definition that a field, or one of its alternatives, refers to."""
    for option in [field, *field.get("anyOf", []), *field.get("allOf", [])]:
        name = str(option.get("$ref", "")).rpartition("/")[2]
        if "properties" in definitions.get(name, {}):
            return dict(definitions[name])
    return None


def _shown(default: Any) -> str:
    words = {None: "null", True: "true", False: "false"}
    return f"`{words[default] if default is None or isinstance(default, bool) else default}`"


def write(path: Path) -> None:
    """Replace the table in a README."""
    text = path.read_text()
    new = re.sub(
        r"(<!-- table: explore -->\n).*?(<!-- end -->)",
        lambda match: f"{match[1]}{settings_table()}\n{match[2]}",
        text,
        flags=re.DOTALL,
    )
    path.write_text(new)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
