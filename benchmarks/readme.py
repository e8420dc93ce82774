"""What README.md takes from the code and from results: `python -m benchmarks.readme` writes it in place."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from bexplore.config import json_schema

README = Path(__file__).parent.parent / "README.md"
RESULTS = Path(__file__).parent / "results"
WORLDS = {
    "public": "recorded sweeps of others, replayed",
    "smooth": "simulated jobs, smooth",
    "rough": "simulated jobs, rough",
    "cliffs": "simulated jobs with a fall, a hole or a peak",
}


def score_table() -> str:
    """How often a final score of 90 and above was right, by kind of problem, as a Markdown table."""
    methods = json.loads((RESULTS / "search.json").read_text())["methods"]
    rows = ["| problems | ended so | mean score | truly within 2 % | probes |", "|---|---|---|---|---|"]
    for world, words in WORLDS.items():
        found = methods[world]["bexplore"]
        share, low, high = (100.0 * value for value in found["score_90_true"])
        ended = round(found["share_with_score_90"] * found["problems"])
        rows.append(
            f"| {words} | {ended:,} of {found['problems']:,} | {found['score_90_mean']:.0f} "
            f"| {share:.1f} % ({low:.1f} to {high:.1f}) | {found['mean_probes'][0]:.1f} |"
        )
    return "\n".join(rows)


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
    """Replace the tables in a README."""
    text = path.read_text()
    for name, table in (("explore", settings_table()), ("score", score_table())):
        pattern = rf"(<!-- table: {name} -->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda match, table=table: f"{match[1]}{table}\n{match[2]}", text, flags=re.DOTALL)
    path.write_text(text)


if __name__ == "__main__":
    write(README)
