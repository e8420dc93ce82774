"""The table of attacks and faults in docs/security.md, from the tests that show what becomes of each.

A test has the marker `@pytest.mark.promise("attack or fault", "what happens")`. The files are read and not imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
FOLDERS = (ROOT / "tests", ROOT / "benchmarks" / "tests")
MARKER = "pytest.mark.promise"
# Area -> what `path::test` of its tests has; the first that fits counts.
AREAS = {
    "Code that a file names": r"no_code|runs_code|can_execute|remote_code",
    "Secrets": r"secret|password|token|credential|private_folder",
    "Reports and messages": r"output/report/|a_report|markup|message_never|outputs_that_fail",
    "Files and options that are wrong or hostile": r"unit/config/|hostile|generated_inputs|test_wheel|test_apply|"
    r"test_baseline|test_attach|test_run_directory",
    "Sockets and ranks": r"test_launcher|test_context|test_ranks|test_all_ranks",
    "The journal, the study, several explorers": r"test_journal|study|test_storage|postgresql|"
    r"benchmarks/tests/test_faults",
    "Kills, signals and clocks": r"kill|signal|clock|suspend|left_behind|reaper|SIGSTOP",
    "Disks, streams and folders": r"test_output|disk|test_logs|test_append_file|read_only|replaced|lock|symlink|folder",
    "Programs that die, hang or take too much": r"tests/engine/|test_limits|tests/torch/",
}
OTHER = "Other faults"


class Promise(NamedTuple):
    """An attack or a fault, what happens, and the test that shows it."""

    attack: str
    result: str
    path: str
    test: str


def promises() -> list[Promise]:
    """Every marked test, in the order of the files.

    Raises:
        ValueError: A marker has something else than two plain texts.
    """
    files = sorted(path for folder in FOLDERS for path in folder.rglob("test_*.py"))
    return [one for path in files for one in _of_file(path)]


def _of_file(path: Path) -> Iterator[Promise]:
    where = str(path.relative_to(ROOT))
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = (node for decorator in function.decorator_list for node in ast.walk(decorator))
            for call in inside:
                if isinstance(call, ast.Call) and ast.unparse(call.func) == MARKER:
                    yield Promise(*_texts(call, f"{where}:{call.lineno}"), where, function.name)


def _texts(call: ast.Call, where: str) -> list[str]:
    texts = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    if len(texts) != 2 or len(call.args) != 2 or call.keywords or not all(texts):
        raise ValueError(f'{where}: write promise("attack or fault", "what happens")')
    return texts


def area_of(promise: Promise) -> str:
    """The area of a promise."""
    name = f"{promise.path}::{promise.test}"
    return next((area for area, pattern in AREAS.items() if re.search(pattern, name)), OTHER)


def table() -> str:
    """The promises by area, each with a link to its test."""
    found = promises()
    lines = [f"{len(found)} attacks and faults, each with the test that shows what becomes of it."]
    for area in (*AREAS, OTHER):
        rows = [one for one in found if area_of(one) == area]
        if rows:
            lines += ["", f"### {area}", "", "| attack or fault | what happens | test |", "|---|---|---|"]
            lines += [f"| {_cell(one.attack)} | {_cell(one.result)} | {_link(one)} |" for one in rows]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _link(one: Promise) -> str:
    return f"[{one.test.removeprefix('test_').replace('_', ' ')}](../{one.path})"
