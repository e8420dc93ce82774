"""The generated parts of README.md and docs/: `make docs`, or `python -m benchmarks.readme [--check]`.

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`; `PARTS` has a function for each name. With
`--check` nothing is written, and the exit code is 1 where a part is not what would be written.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import readme_promises, readme_tables
from bexplore.config.json_schema import make_schema

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PART = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

# What `bexplore explore configs/quickstart.yaml` printed; recorded by hand, and the only place that holds it.
QUICKSTART = ROOT / "docs" / "quickstart.txt"
SHOWN_OF_SUMMARY = ("Use ", "To keep ", "  memory", "Report: ", "Apply: ")  # in README, below the streamed lines

# The entries of the package in the order of the flow, each with a phrase.
TREE = {
    "cli/": "the commands, their options and exit codes",
    "config/": "YAML -> Config: every default and check, and the families of files",
    "estimate/": "times of kernels on a named device by a fitted model, without running them",
    "job/": "what is trained or evaluated: all that decides the program; batch arithmetic",
    "workloads/": "Job -> live torch modules: decoders, transformers models, your own code",
    "trace/": "Job -> CostModel: memory and operations at every size, from one symbolic trace",
    "measurement/": "Probe, Observation and Runner; interleaved timing; statistics",
    "search/": "observations -> the next probe, the recommendation (no torch)",
    "engine/": "a Runner on real hardware: worker processes that compile and time one size",
    "command/": "a Runner of your own training command: starts it, observes its steps, ends it",
    "replay/": "a Runner over a recorded table",
    "run/": "what a run keeps and answers: directory, journal, fingerprint, result, events",
    "diagnosis/": "what limits a job beside its size: rules over measurements and trace",
    "exploration/": "one run from plan to result: of a job, of a training command",
    "actions/": "beside exploring: apply, doctor, probe or trace one size",
    "emulated_gpu/": "libraries in place of NVIDIA's: the CUDA build of PyTorch runs where there is no GPU",
    "planning/": "plans of a training: time, devices, price, parts of a step; the network's speed",
    "guard/": "compares a job with a baseline or another revision, in CI",
    "output/": "streamed line, live view, summary, JSON lines, HTML report",
    "api.py": "the public function `explore`",
    "start_again.py": "starts this program again for each probe, for the three one-liners below",
    "pytest_plugin.py": "a job's exact facts, asserted in your own tests",
    "decorator.py": "finds the batch size of a training function",
    "lightning.py": "a Lightning callback that finds the micro-batch size, then trains with it",
    "transformers.py": "finds the micro-batch size of a transformers Trainer",
    "errors.py": "every error raised on purpose: message, hint, exit code",
    "units.py": "bytes, seconds and shares, parsed and printed",
    "host/": "processors, memory, accelerators, processes, locks, JSON files, log",
    "__init__.py": "the public names",
    "__main__.py": "`python -m bexplore`",
    "py.typed": "the package has types",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where a part is out of date")
    only_check = parser.parse_args().check
    stale = []
    for path in PAGES:
        text = path.read_text()
        stale += [f"{path.relative_to(ROOT)}: {name}" for name, body in parts_of(text) if body != f"{PARTS[name]()}\n"]
        if not only_check:
            path.write_text(PART.sub(lambda match: f"{match[1]}{PARTS[match[2]]()}\n{match[3]}", text))
    if only_check and stale:
        sys.exit("out of date (`make docs` writes them):\n" + "\n".join(stale))


def parts_of(text: str) -> Iterator[tuple[str, str]]:
    """The name and the text of each generated part of a page."""
    for match in PART.finditer(text):
        yield match[2], match[0].removeprefix(match[1]).removesuffix(match[3])


# The quickstart


def quickstart() -> str:
    """All that the quickstart printed."""
    return f"```\n{QUICKSTART.read_text().rstrip()}\n```"


def quickstart_in_short() -> str:
    """Eight lines of it: three that were streamed, and the summary's most important ones."""
    lines = QUICKSTART.read_text().splitlines()
    streamed = [line for line in lines if line.startswith("BEXP")]
    summary = [line for line in lines if line.startswith(SHOWN_OF_SUMMARY)]
    return "\n".join(["```", *streamed[:2], "...", streamed[-1], *summary, "```"])


# The package


def tree() -> str:
    """The entries of the package in the order of the flow."""
    width = max(map(len, TREE))
    lines = [f"  {name:{width}}  {phrase}" for name, phrase in TREE.items()]
    return "\n".join(["```", "bexplore/", *lines, "```"])


# The configuration


def settings() -> str:
    """Every key of the `explore:` section with its default and its meaning."""
    schema = make_schema()
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
    """The definition to which a field, or one of its alternatives, refers."""
    for option in [field, *field.get("anyOf", []), *field.get("allOf", [])]:
        name = str(option.get("$ref", "")).rpartition("/")[2]
        if "properties" in definitions.get(name, {}):
            return dict(definitions[name])
    return None


def _shown(default: Any) -> str:
    words = {None: "null", True: "true", False: "false"}
    return f"`{words[default] if default is None or isinstance(default, bool) else default}`"


PARTS = {
    "quickstart": quickstart,
    "quickstart-in-short": quickstart_in_short,
    "tree": tree,
    "settings": settings,
    "score": readme_tables.score,
    "tolerance": readme_tables.tolerance,
    "noise": readme_tables.noise,
    "bands": readme_tables.bands,
    "regret-bound": readme_tables.regret_bound,
    "cost": readme_tables.cost,
    "cost-verdict": readme_tables.cost_verdict,
    "total": readme_tables.total,
    "rivals": readme_tables.rivals,
    "one-way-to-measure": readme_tables.one_way_to_measure,
    "families": readme_tables.families,
    "lengths": readme_tables.lengths,
    "plan-steps": readme_tables.plan_steps,
    "published-trainings": readme_tables.published_trainings,
    "kernel-times": readme_tables.kernel_times,
    "whole-steps": readme_tables.whole_steps,
    "published-collectives": readme_tables.published_collectives,
    "calibrated-jobs": readme_tables.calibrated_jobs,
    "estimated-sweeps": readme_tables.estimated_sweeps,
    "estimate-prior": readme_tables.estimate_prior,
    "promises": readme_promises.table,
}

if __name__ == "__main__":
    main()
