"""The types of the public names, as a reader of the package sees them."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bexplore
from tests.builders import ROOT

PROGRAM = ROOT / "tests" / "jobs" / "typed_program.py"
EXPECTED = [number for number, line in enumerate(PROGRAM.read_text().splitlines(), 1) if line.endswith("# error")]


def test_each_public_name_is_imported_for_type_checkers():
    (block,) = [
        node
        for node in ast.parse(Path(bexplore.__file__).read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    typed = {alias.asname: one.module for one in block.body for alias in one.names}
    assert typed == bexplore._PUBLIC | dict.fromkeys(bexplore._MODULES, "bexplore")


@pytest.mark.external
def test_a_program_of_a_user_is_typed_under_mypy_strict():
    # As a user has it: without this project's settings, and without errors inside of the package.
    options = ["--strict", "--follow-imports=silent", "--config-file=", "--no-error-summary"]
    command = [sys.executable, "-m", "mypy", *options, str(PROGRAM)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert {int(number) for number in re.findall(r":(\d+): error:", done.stdout)} == set(EXPECTED), done.stdout


@pytest.mark.external
@pytest.mark.skipif(importlib.util.find_spec("pyright") is None, reason="pyright is not installed: make setup")
def test_a_program_of_a_user_is_typed_under_pyright_strict(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM.read_text())
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT)]}  # an editable package is found by a hook
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if not done.stdout.startswith("{"):
        pytest.skip(f"pyright cannot run here: {done.stderr[-300:]}")

    errors = [one for one in json.loads(done.stdout)["generalDiagnostics"] if one["severity"] == "error"]
    assert {one["range"]["start"]["line"] + 1 for one in errors} == set(EXPECTED), errors
