"""What README.md takes from the code and from results: `python -m benchmarks.readme` writes it in place."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.engine_cost import OURS, SWEEP, finders, sums
from benchmarks.search_problems import IN_TURNS
from benchmarks.search_total_cost import AS_IT_WORKS, EACH_COMPILED
from bexplore.config.config import json_schema

README = Path(__file__).parent.parent / "README.md"
RESULTS = Path(__file__).parent / "results"
FINDERS = {  # name for people, and how its answer was run
    OURS: ("bexplore", "yes, compiled"),
    SWEEP: ("a static sweep of powers of two", "yes, compiled"),
    "lightning_power": ("Lightning, power", "3 steps, eager"),
    "lightning_binsearch": ("Lightning, binsearch", "3 steps, eager"),
    "accelerate": ("accelerate", "3 steps, eager"),
    "doubling_compiled": ("doubling, torch.compile", "3 steps, compiled"),
}
WORLDS = {
    ("public", "bexplore"): "recorded sweeps of others, replayed",
    ("smooth", "bexplore"): "simulated jobs, smooth",
    ("rough", "bexplore"): "simulated jobs, rough",
    ("cliffs", "bexplore"): "simulated jobs with a fall, a hole or a peak",
    ("wandering", IN_TURNS): "simulated machines whose speed wanders, sizes in turns",
}


SETS_OF_PROBLEMS = {
    "recorded, developed on": "recorded sweeps that the search was developed on",
    "recorded, not seen": "recorded sweeps that it was not",
    "cpu_like": "simulated jobs like those of a CPU",
    "gpu_like": "simulated jobs like those of a GPU",
}
SHOWN_RIVALS = 3  # the cheapest of each set


def score_table() -> str:
    """How often a final score of 90 and above was right, by kind of problem, as a Markdown table."""
    methods = json.loads((RESULTS / "search.json").read_text())["methods"]
    rows = ["| problems | ended so | mean score | truly within 2 % | probes |", "|---|---|---|---|---|"]
    for (world, method), words in WORLDS.items():
        found = methods[world][method]
        share, low, high = (100.0 * value for value in found["score_90_true"])
        ended = round(found["share_with_score_90"] * found["problems"])
        rows.append(
            f"| {words} | {ended:,} of {found['problems']:,} | {found['score_90_mean']:.0f} "
            f"| {share:.1f} % ({low:.1f} to {high:.1f}) | {found['mean_probes'][0]:.1f} |"
        )
    return "\n".join(rows)


def tolerance_table() -> str:
    """The same where another share than 2 % was asked for."""
    rows = ["| asked for within | ended so | mean score | truly within | probes |", "|---|---|---|---|---|"]
    for found in json.loads((RESULTS / "search.json").read_text())["tolerances"]:
        if found["world"] == "all":
            share, low, high = (100.0 * value for value in found["score_90_true"])
            ended = round(found["share_with_score_90"] * found["problems"])
            rows.append(
                f"| {found['tolerance']:.0%} | {ended:,} of {found['problems']:,} | {found['score_90_mean']:.0f} "
                f"| {share:.1f} % ({low:.1f} to {high:.1f}) | {found['mean_probes'][0]:.1f} |"
            )
    return "\n".join(rows)


def shortfall_table() -> str:
    """How often the recommended size is as near to the best as a low score says, as a Markdown table."""
    words_of = {world: words for (world, _), words in WORLDS.items()}
    rows = ["| problems | recommendations | truly as near |", "|---|---|---|"]
    everything, *worlds = json.loads((RESULTS / "search.json").read_text())["regrets"]
    for found in (*worlds, everything):
        share, low, high = (100.0 * value for value in found["held"])
        words = words_of.get(found["world"], "all of these together")
        rows.append(f"| {words} | {found['messages']:,} | {share:.1f} % ({low:.1f} to {high:.1f}) |")
    return "\n".join(rows)


def cost_table() -> str:
    """What tuning costs in all on the engine's jobs and by sum, by finder, as a Markdown table."""
    jobs = json.loads((RESULTS / "engine.json").read_text())["jobs"]
    costs = {name: {one["name"]: one for one in finders(job)} for name, job in jobs.items()}
    titles = [job["title"].partition(",")[0] for job in jobs.values()]
    rows = [f"| finder | {' | '.join(titles)} | sum |", "|---|" + "---:|" * (len(titles) + 1)]
    total_s = sums(jobs)
    for name in sorted(total_s, key=list(FINDERS).index):
        cells = [_cost(costs[job].get(name)) for job in jobs]
        rows.append(f"| {FINDERS[name][0]} | {' | '.join(cells)} | {_seconds(total_s[name])} |")
    return "\n".join(rows)


def _cost(run: Mapping[str, Any] | None) -> str:
    if run is None:
        return "not measured"
    return f"ends ({_seconds(run['cost_s'])})" if run["ends"] else _seconds(run["cost_s"])


def _seconds(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds:,.0f}"


def total_table() -> str:
    """What tuning costs in all with each method, as a Markdown table: means over the problems of a set."""
    sets = json.loads((RESULTS / "search.json").read_text()).get("total_cost", ())
    rows = [
        "| problems | finder | seconds to find | seconds lost in 10 h | both | of the cheapest other |",
        "|---|---|---|---|---|---|",
    ]
    for found in sets:
        methods, count = found["methods"], found["problems"]
        rivals = sorted(
            (name for name in methods if name not in found["ratios"]), key=lambda name: methods[name]["sum_s"]
        )
        for number, name in enumerate((AS_IT_WORKS, EACH_COMPILED, *rivals[:SHOWN_RIVALS])):
            finder, lost, both = (methods[name][key] / count for key in ("finder_sum_s", "lost_sum_s", "sum_s"))
            ratio = ""
            if name in found["ratios"]:
                value, low, high = found["ratios"][name]["sum"]
                ratio = f"{value:.2f} ({low:.2f} to {high:.2f})"
            title = f"{SETS_OF_PROBLEMS[found['set']]} ({count:,})" if number == 0 else ""
            rows.append(f"| {title} | {name} | {finder:.0f} | {lost:.0f} | {both:.0f} | {ratio} |")
    return "\n".join(rows)


def rivals_table() -> str:
    """What other finders answer on the engine's jobs, how long they take and what it is worth, as a Markdown table."""
    jobs = json.loads((RESULTS / "engine.json").read_text())["jobs"]
    rows = [
        "| job | finder | seconds | answer | its speed, of the fastest size's | it was run |",
        "|---|---|---|---|---|---|",
    ]
    for job in jobs.values():
        found = sorted(finders(job), key=lambda one: list(FINDERS).index(one["name"]))
        for number, one in enumerate(found):
            name, how = FINDERS[one["name"]]
            title = job["title"] if number == 0 else ""
            speed = f"{100 * (1 - one['regret']['estimate']):.1f} %" if one["regret"] else "not measured"
            was_run = how if one["was_run"] else "no"
            rows.append(f"| {title} | {name} | {one['total_s']:.0f} | {one['answer']} | {speed} | {was_run} |")
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


TABLES = {
    "explore": settings_table,
    "total": total_table,
    "score": score_table,
    "tolerance": tolerance_table,
    "regret": shortfall_table,
    "cost": cost_table,
    "rivals": rivals_table,
}


def write(path: Path) -> None:
    """Replace the tables in a README."""
    text = path.read_text()
    for name, table in TABLES.items():
        pattern = rf"(<!-- table: {name} -->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda match, table=table: f"{match[1]}{table()}\n{match[2]}", text, flags=re.DOTALL)
    path.write_text(text)


if __name__ == "__main__":
    write(README)
