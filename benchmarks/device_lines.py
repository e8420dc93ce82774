"""Product lines that ask for the kind of a device, and which ran: `python -m benchmarks.device_lines COMMAND...`.

Runs a command (the tests on an emulated device) and prints the share of those statements that ran in any of its
processes, and those that did not. A statement asks for the device's kind if its text names one, or if it stands in the
branch that a CUDA device takes of a condition that does.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
HOOK = ROOT / "benchmarks" / "device_lines_hook"
ASKS = re.compile(r"""torch\.cuda\.|["']cuda\b|\bis_cuda\b|device\.type|\bdevice_kind\(|\bdevice_type\b|on_cpu\b""")
# Conditions that hold on the CPU alone, so that a CUDA device takes the other branch.
OF_THE_CPU = re.compile(r"""== ["']cpu["']|^(self\.)?_?on_cpu$|not torch\.cuda\.is_available\(\)|!= ["']cuda["']""")
# Not of a device that is here: stand-ins for an absent one, and the emulated libraries themselves.
LEFT_OUT = ("trace/absent_gpu/", "emulated_gpu/")


def asking_lines(source: str) -> set[int]:
    """Return the first lines of the statements of a module that ask for the kind of a device."""
    found = set()
    for statement, text in _statements(ast.parse(source)):
        if ASKS.search(text):
            found.add(statement.lineno)
        if isinstance(statement, ast.If) and ASKS.search(condition := ast.unparse(statement.test)):
            branch = statement.orelse if OF_THE_CPU.search(condition) else statement.body
            found |= {one.lineno for part in branch for one in ast.walk(part) if isinstance(one, ast.stmt)}
    return found


def _statements(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """Yield the statements that run within a function, with their text less that of the statements in them."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.stmt) and node is not function and not isinstance(node, ast.FunctionDef):
                yield node, _own_text(node)


def _own_text(statement: ast.stmt) -> str:
    own = [value for name, value in ast.iter_fields(statement) if name not in ("body", "orelse", "finalbody")]
    parts = [part for value in own for part in (value if isinstance(value, list) else [value])]
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return "" if is_text else " ".join(ast.unparse(part) for part in parts if isinstance(part, ast.expr))


def listed() -> dict[str, list[int]]:
    """Return the asking lines of the product by path."""
    found = {}
    for path in sorted((ROOT / "bexplore").rglob("*.py")):
        if not any(part in str(path) for part in LEFT_OUT) and (lines := asking_lines(path.read_text())):
            found[str(path)] = sorted(lines)
    return found


def main() -> int:
    """Run a command, and tell of the lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seen", type=Path, help="file of the lines that ran, which further runs add to")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    lines = listed()
    with tempfile.TemporaryDirectory(prefix="bexplore-device-lines-") as folder:
        seen = options.seen.absolute() if options.seen else Path(folder, "seen")
        Path(folder, "listed.json").write_text(json.dumps(lines))
        own = {
            "BEXPLORE_DEVICE_LINES": str(Path(folder, "listed.json")),
            "BEXPLORE_DEVICE_LINES_SEEN": str(seen),
            "PYTHONPATH": os.pathsep.join([str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        status = subprocess.run(options.command, env=os.environ | own, check=False).returncode if options.command else 0
        ran = set(seen.read_text().split()) if seen.exists() else set()
    wanted = [f"{path}:{line}" for path, numbers in lines.items() for line in numbers]
    missing = [one for one in wanted if one not in ran]
    for one in missing:
        path, _, line = one.rpartition(":")
        text = Path(path).read_text().splitlines()[int(line) - 1].strip()
        print(f"{Path(path).relative_to(ROOT)}:{line}: {text}")
    share = 1 - len(missing) / len(wanted)
    print(f"{len(wanted) - len(missing)} of {len(wanted)} statements that ask for the device's kind ran: {share:.1%}")
    return status


if __name__ == "__main__":
    sys.exit(main())
