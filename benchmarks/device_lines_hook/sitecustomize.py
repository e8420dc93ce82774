"""Notes the statements of a list that run in a Python process: see `benchmarks.device_lines`, which starts it so.

The statements get a call before them when their module is loaded, so that nothing else of the process is slower.
"""

import ast
import builtins
import importlib.machinery
import json
import os
from pathlib import Path

LISTED = os.environ.get("BEXPLORE_DEVICE_LINES", "")  # {path: [lines]} as JSON
OBSERVER = "/bexplore_observer/"  # folder of which a start of a command loads a copy
SEEN = os.environ.get("BEXPLORE_DEVICE_LINES_SEEN", "")  # a line `path:line` for each, from all processes


def _install() -> None:
    listed = {path: frozenset(lines) for path, lines in json.loads(Path(LISTED).read_text()).items()}
    seen = set()

    def note(path: str, line: int) -> None:
        if (path, line) not in seen:
            seen.add((path, line))
            file = os.open(SEEN, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(file, f"{path}:{line}\n".encode())
            os.close(file)

    builtins.__dict__["__note_device_line__"] = note
    loader = importlib.machinery.SourceFileLoader
    get_code = loader.get_code

    def get_noting_code(self, fullname):
        path = self.get_filename(fullname)
        source = copies.get(path.rpartition(OBSERVER)[2], path) if OBSERVER in path else path
        if source not in listed:
            return get_code(self, fullname)
        tree = _noting_tree(self.get_data(path), source, listed[source])
        return builtins.compile(tree, path, "exec", dont_inherit=True)

    copies = {path.rpartition(OBSERVER)[2]: path for path in listed if OBSERVER in path}
    loader.get_code = get_noting_code


def _noting_tree(source, path, lines):
    tree = ast.parse(source)
    for node in list(ast.walk(tree)):
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                setattr(node, name, _noting(statements, path, lines))
    return ast.fix_missing_locations(tree)


def _noting(statements, path, lines):
    found = []
    for one in statements:
        if getattr(one, "lineno", None) in lines and isinstance(one, ast.stmt):
            place = [ast.Constant(path), ast.Constant(one.lineno)]
            call = ast.Call(ast.Name("__note_device_line__", ast.Load()), place, [])
            found.append(ast.copy_location(ast.Expr(call), one))
        found.append(one)
    return found


if LISTED and SEEN:
    _install()
