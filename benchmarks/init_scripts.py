"""`bexplore init` on scripts of many styles, followed as it prints: `python -m benchmarks.init_scripts [STYLE ...]`.

Each script is tiny and trains on the CPU. `init` writes a file or says what to type or to edit; that is done, and the
exploration runs with sizes up to 4. Rows of an earlier call stay, so that styles may be run one by one. A style whose
package is not installed here is not run: the command that `init` makes is compared with the right one.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.init_script_texts import COMMON, PACKAGES, SCRIPTS, Script
from benchmarks.machine_facts import machine_facts

RESULTS = Path(__file__).parent / "results"
SHORT = ("--set", "explore.max=4", "--set", "explore.max_probes=2")
_SECONDS = 300  # of one call of bexplore


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What became of one script.

    Attributes:
        style: Of the script.
        number: Among those of its style.
        followed: What was done, in order.
        is_run: Whether its package is here, so that the exploration ran; else the command was compared.
        is_right: Whether an exploration gave a size, or the command is the right one.
        said: The last words of what failed.
        wall_s: Seconds of all calls.
    """

    style: str
    number: int
    followed: list[str]
    is_run: bool
    is_right: bool
    said: str
    wall_s: float


def bexplore(folder: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a line of bexplore in a folder."""
    path = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-m", "bexplore", *words],
        cwd=folder,
        env=path,
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )


def edit(folder: Path, message: str, hint: str) -> str:
    """Do the edit that an error names; return what was done."""
    place = re.search(r"(\S+\.py):(\d+):", message)
    line = re.search(r"in place of line \d+.*?:\n(.*)\n", hint)
    assert place is not None and line is not None
    path, number = folder / place[1], int(place[2])
    lines = path.read_text().splitlines()
    lines[number - 1] = line[1]
    if "`import os`" in hint:
        first = next(index for index, one in enumerate(lines) if one.startswith(("import ", "from ")))
        lines.insert(first, "import os")
    path.write_text("\n".join(lines) + "\n")
    return f"line {number} of {place[1]}: {line[1].strip()}"


def follow(folder: Path, script: Script, followed: list[str]) -> tuple[bool, str]:
    """Do what `init` prints, then what that prints, until an exploration ends; return whether it gave a size."""
    line = ["init", "train.py"]
    for _ in range(5):
        followed.append(shlex.join(["bexplore", *line]))
        done = bexplore(folder, [*line, *SHORT] if line[0] == "explore" and "--" not in line else with_limits(line))
        if done.returncode == 0 and line[0] == "explore":
            return "Use micro_batch_size" in done.stdout, done.stdout[-300:]
        if done.returncode == 0:
            next_line = re.search(r"next: bexplore (explore \S+) --dry-run", done.stdout)
            assert next_line is not None, done.stdout
            line = shlex.split(next_line[1])
            line += ["--writes-are-fine"] if "--writes-are-fine" in done.stdout else []
            continue
        message, _, hint = done.stderr.partition("hint: ")
        if "in place of line" in hint:
            followed.append(edit(folder, message, hint))
        lines = [
            one[one.index("bexplore ") :] for one in hint.splitlines() if re.search(r"bexplore (init|explore) ", one)
        ]
        lines = [one for one in lines if "OPTION" not in one and (not script.command or script.command in one.split())]
        if not lines:
            return False, done.stderr[-400:]
        line = [script.values.get(word, word) for word in shlex.split(lines[0])[1:]]
    return False, "the lines lead in a circle"


def with_limits(line: list[str]) -> list[str]:
    """Return a line with the limits of this benchmark, before the command behind the dashes."""
    if line[0] != "explore":
        return line
    index = line.index("--")
    return [*line[:index], *SHORT, *line[index:]]


def compare(folder: Path, script: Script, followed: list[str]) -> tuple[bool, str]:
    """Return whether the command of `init`, in its file or its error, is the right one."""
    followed.append("bexplore init train.py")
    done = bexplore(folder, ["init", "train.py"])
    written = [*folder.glob("*explore.yaml")]
    text = written[0].read_text() if written else done.stderr
    command = re.search(r"(?:command: '?|bexplore init -- )python train\.py (.*?)'?\n", text)
    return command is not None and command[1] == script.words, text[-400:]


def measure(style: str, number: int, script: Script) -> Row:
    """Follow `init` on one script, in a folder of its own."""
    is_run = all(find_spec(name) is not None for name in PACKAGES.get(style, ()))
    followed: list[str] = []
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="bexplore-init-") as name:
        folder = Path(name)
        for file, text in {"train.py": script.text, "common.py": COMMON, **script.files}.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text)
        is_right, said = (follow if is_run else compare)(folder, script, followed)
    wall_s = round(time.perf_counter() - started, 1)
    return Row(
        style=style,
        number=number,
        followed=followed,
        is_run=is_run,
        is_right=is_right,
        said="" if is_right else said,
        wall_s=wall_s,
    )


def write(rows: dict[str, dict[str, object]], machine: dict[str, object]) -> None:
    """Write the result: for programs, and as a table."""
    ordered = [rows[key] for style in SCRIPTS for key in rows if rows[key]["style"] == style]
    (RESULTS / "init_scripts.json").write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    run, right = [row for row in ordered if row["is_run"]], [row for row in ordered if row["is_right"]]
    lines = [
        "# `bexplore init` on scripts",
        "",
        "Written by `python -m benchmarks.init_scripts`.",
        "",
        f"* {len(right)} of {len(ordered)} scripts, in {len({row['style'] for row in ordered})} styles. "
        f"Of {len(run)}, whose packages are here, the exploration ran in {sum(bool(row['is_right']) for row in run)}; "
        f"of {len(ordered) - len(run)} the command was compared with the right one, and nothing was run.",
        "* The scripts are this project's own, and written beside the reader: they show what it knows, not what people",
        "  write. Followed: what `init` prints, word by word; for words in capitals the values of the script.",
        f"* machine: {', '.join(f'{key} {value}' for key, value in machine.items())}",
        "",
        "| style | scripts | right | run | what was followed |",
        "|---|---:|---:|---|---|",
    ]
    for style in SCRIPTS:
        own = [row for row in ordered if row["style"] == style]
        if own:
            steps = sorted({_kind(row) for row in own})
            run_here = "yes" if own[0]["is_run"] else "no"
            num_right = sum(bool(row["is_right"]) for row in own)
            lines.append(f"| {style} | {len(own)} | {num_right} | {run_here} | {'; '.join(steps)} |")
    failed = [row for row in ordered if not row["is_right"]]
    lines += ["", "## Not right", ""] if failed else []
    lines += [f"* {row['style']} {row['number']}: {str(row['said']).splitlines()[:1]}" for row in failed]
    (RESULTS / "init_scripts.md").write_text("\n".join(lines) + "\n")


def _kind(row: dict[str, object]) -> str:
    steps = row["followed"]
    assert isinstance(steps, list)
    if not row["is_run"]:
        return "nothing: the command was compared"
    if any(step.startswith("line ") for step in steps):
        return "the line to edit"
    if any("--run-help" in step for step in steps):
        return "the line with `--run-help`"
    return "the line to type" if len([step for step in steps if " init " in step]) > 1 else "the file"


def main() -> None:
    """Run the scripts of the named styles, or of all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.init_scripts", description=__doc__)
    parser.add_argument("styles", nargs="*", choices=[*SCRIPTS, []], help="these alone")
    styles = parser.parse_args().styles or list(SCRIPTS)
    path = RESULTS / "init_scripts.json"
    rows = json.loads(path.read_text())["rows"] if path.is_file() else {}
    for style in styles:
        for number, script in enumerate(SCRIPTS[style], 1):
            row = measure(style, number, script)
            rows[f"{style} {number}"] = asdict(row)
            print(f"{style} {number}: {'right' if row.is_right else 'WRONG'} in {row.wall_s} s {row.said}", flush=True)
            write(rows, machine_facts())


if __name__ == "__main__":
    main()
