"""The table of what was expected and what was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from benchmarks.gpu_check.state import State
from benchmarks.gpu_check.steps import Step
from benchmarks.gpu_check.verdict import Word

LONGEST_FOUND = 400  # characters of a cell; the facts are in the JSON file


def markdown(state: State, steps: Sequence[Step]) -> str:
    """The page: device, torch, day, a count of verdicts, a line for each step."""
    rows = [_row(state, step) for step in steps]
    counts = Counter(state.steps.get(step.name, {}).get("verdict", Word.NOT_RUN.value) for step in steps)
    days = sorted({record["at"][:10] for record in state.steps.values()})
    lines = [
        "# What was looked at on a GPU",
        "",
        f"`python -m benchmarks.gpu_check` on {state.machine['device']}, torch {state.machine['torch']}, "
        f"{', '.join(days) or 'not yet'}. {', '.join(f'{counts[word]} {word}' for word in Word if counts[word])}.",
        "All facts are in the JSON file beside this one. A number in brackets is that of the finding behind the step.",
        "",
        "| | step | expected | found | verdict | s |",
        "|---|---|---|---|---|---|",
        *rows,
    ]
    return "\n".join(lines) + "\n"


def _row(state: State, step: Step) -> str:
    record = state.steps.get(step.name, {"verdict": Word.NOT_RUN.value, "found": "", "wall_s": 0.0})
    verdict = record["verdict"] if record["verdict"] == Word.OK else f"**{record['verdict']}**"
    found = _cell(record["found"])
    return f"| {step.section} | `{step.name}` | {step.expected} | {found} | {verdict} | {record['wall_s']:.0f} |"


def _cell(text: str) -> str:
    line = " ".join(text.split()).replace("|", "\\|")
    return line if len(line) <= LONGEST_FOUND else line[: LONGEST_FOUND - 1] + "…"
